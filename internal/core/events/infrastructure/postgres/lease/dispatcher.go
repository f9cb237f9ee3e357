package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// dispatcher dispatches a consumer's events under leases.
type dispatcher struct {
	consumer  *dispatch.Consumer
	completer *completer
	begun     sync.Once       // the completer and the heartbeat run
	stopEnds  context.Context // ends when a forced stop does; set before the first lease
	over      chan struct{}   // closed when no lease is left

	// guarded by the consumer's lock
	claiming    bool
	lastCrashed bool                 // the last claim was of rows with crashes
	leases      map[uuid.UUID]*lease // by token: each takes one place of the concurrency
}

// Connections is how many connections of the pool a leased consumer needs at once.
const Connections = 1 + completers + singles

// Attach has c dispatch its events under leases.
func Attach(c *dispatch.Consumer) { newDispatcher(c) }

func newDispatcher(c *dispatch.Consumer) *dispatcher {
	d := &dispatcher{
		consumer: c, completer: newCompleter(c), leases: make(map[uuid.UUID]*lease), over: make(chan struct{}),
	}
	c.Wake, c.Await, c.Leases, c.Probe = d.wake, d.await, func() int { return len(d.leases) }, d.probe
	return d
}

// wake makes sure that a claim begins after this call, once there is a place for another lease.
func (d *dispatcher) wake(ctx context.Context, crashed bool) {
	c := d.consumer
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Again, c.Crashed = true, c.Crashed || crashed
	d.claimMore(ctx)
}

// await waits for the handlers that run, and releases the leases that could not be settled.
func (d *dispatcher) await() {
	d.consumer.Running.Wait()
	d.releaseAll()
	close(d.completer.results)
	close(d.over)
}

// start starts the completer and the heartbeat, until await. Ctx is done when the worker's grace period is over.
func (d *dispatcher) start(ctx context.Context) {
	detached := context.WithoutCancel(ctx)
	flush, endFlush := context.WithCancel(detached)
	stopEnds, endStop := context.WithCancel(detached)
	d.completer.flush, d.stopEnds = flush, stopEnds
	context.AfterFunc(ctx, func() {
		time.AfterFunc(pgtx.FlushTimeout, endFlush)
		time.AfterFunc(pgtx.ForcedStop, endStop)
	})
	for range completers {
		go d.completer.run()
	}
	go d.heartbeat(detached)
}

// claimMore starts claims, unless they go on already, or there is nothing to claim or no place. The lock is held.
func (d *dispatcher) claimMore(ctx context.Context) {
	c := d.consumer
	if d.claiming || c.Stopped || !c.Again && !c.Crashed || len(d.leases) >= c.Subscription.Concurrency {
		return
	}
	d.claiming = true
	c.Running.Go(func() { d.claimUntilEmpty(ctx) })
}

// next returns how to claim: up to limit rows, with crashes or others. Zero: not at all.
func (d *dispatcher) next(ctx context.Context) (limit int, crashed bool) {
	c := d.consumer
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if free := c.Subscription.Concurrency - len(d.leases); free > 0 && !c.Stopped {
		// in turns, so that neither kind delays the other
		if c.Crashed && (!d.lastCrashed || !c.Again) && c.TakeCrashSlot(ctx) {
			c.Crashed, d.lastCrashed = false, true // a poll may find more while this one claims
			return 1, true
		}
		if c.Again {
			c.Again, d.lastCrashed = false, false
			return min(free, c.Subscription.BatchSize), false
		}
	}
	d.claiming = false
	return 0, false
}

// claimUntilEmpty claims until nothing is left or every place is taken.
func (d *dispatcher) claimUntilEmpty(ctx context.Context) {
	c := d.consumer
	var wait pgtx.Backoff
	for {
		c.AwaitServer(ctx)
		limit, crashed := d.next(ctx)
		if limit == 0 {
			return
		}
		found, err := claim(ctx, c, limit, crashed, "")
		if crashed && len(found) == 0 {
			c.Journal.CrashSlot.Release() // otherwise drop does
		}
		recheck := d.hold(ctx, found, err, limit, crashed)
		switch {
		case c.Isolate(ctx, err, limit, crashed):
		case err != nil && ctx.Err() == nil:
			c.TryLater(ctx, wait.Next(), c.Stop, err)
		case recheck:
			pgtx.Pause(ctx, pgtx.RecheckPause, c.Stop)
		default:
			wait = pgtx.Backoff{}
		}
	}
}

// hold takes in the result of a claim: it begins the work on the new leases, and reports whether the claim is to be
// repeated after a pause.
func (d *dispatcher) hold(ctx context.Context, found []*lease, err error, limit int, crashed bool) (recheck bool) {
	c := d.consumer
	c.Mu.Lock()
	defer c.Mu.Unlock()
	payload := d.begin(ctx, found)
	switch {
	case err != nil:
		c.Again, c.Crashed = true, c.Crashed || crashed
		c.Recheck.Begin()
	case crashed:
		c.Crashed = c.Crashed || len(found) > 0
	case len(found) == 0:
		recheck = c.Recheck.Next()
		c.Again = c.Again || recheck
	default:
		// a claim ends early when its payloads are large
		c.Again = c.Again || len(found) == limit || payload >= dispatch.BatchBytes/2
	}
	return recheck
}

// begin begins the work on new leases, and returns how many bytes of payload they have. The lock is held.
func (d *dispatcher) begin(ctx context.Context, found []*lease) (payload int) {
	c := d.consumer
	if len(found) > 0 {
		d.begun.Do(func() { d.start(ctx) })
	}
	for _, l := range found {
		payload += len(l.row.Envelope.Payload)
		work, cancel := context.WithCancelCause(ctx)
		l.cancel = cancel
		d.leases[l.row.Token] = l
		if c.Stopped {
			cancel(events.ErrStopping) // before it begins
		}
		c.Running.Go(func() {
			defer cancel(nil)
			e := &execution{consumer: c, completer: d.completer, lease: l}
			if !e.run(work) {
				d.drop(ctx, l)
			}
		})
	}
	return payload
}

// probe runs events that wait for the breaker of a handler at once, and returns when each has been called.
func (d *dispatcher) probe(ctx, limit context.Context, handler string, width int) *dispatch.Probed {
	found := &dispatch.Probed{}
	leases, err := claim(ctx, d.consumer, width, false, handler)
	if err != nil {
		d.consumer.TryLater(ctx, 0, d.consumer.Stop, err)
		found.Failed = true
		return found
	}
	results := make(chan *dispatch.Failure, len(leases))
	for _, l := range leases {
		l.probed = results
	}
	d.consumer.Mu.Lock()
	d.begin(ctx, leases)
	d.consumer.Mu.Unlock()
	for range leases {
		select {
		case f := <-results:
			found.Note(f)
		case <-limit.Done():
			found.Failed = true
			return found
		}
	}
	return found
}

// drop frees the place of l, and the crash slot if l holds it.
func (d *dispatcher) drop(ctx context.Context, l *lease) {
	c, crashed := d.consumer, l.slot
	if crashed {
		c.Journal.CrashSlot.Release()
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	delete(d.leases, l.row.Token)
	c.Crashed = c.Crashed || crashed
	d.claimMore(ctx)
}

// all returns the leases in flight.
func (d *dispatcher) all() []*lease {
	d.consumer.Mu.Lock()
	defer d.consumer.Mu.Unlock()
	return slices.Collect(maps.Values(d.leases))
}

// heartbeat renews the leases in flight until none is left after a stop.
func (d *dispatcher) heartbeat(ctx context.Context) {
	c := d.consumer
	length := c.Subscription.Lease
	every := length / 3
	for next := every; ; {
		pgtx.Pause(ctx, next, d.over)
		select {
		case <-d.over:
			return
		default:
		}
		next = every
		all := d.all()
		if len(all) == 0 {
			continue
		}
		sent := time.Now()
		held, err := renew(ctx, c, all, "")
		if err != nil || len(held) < len(all) { // some are locked at the moment
			next = pgtx.Jittered(max(min(every/4, pgtx.MaxBackoff), pgtx.MinRenewal/2))
		}
		if err != nil {
			c.Log.WarnContext(ctx, "leases could not be renewed",
				append(pgtx.LogError(err), pgtx.LogRows, len(all), pgtx.LogDelay, next.Milliseconds())...)
		}
		c.Mu.Lock()
		for _, l := range all {
			holds, known := held[l.row.Token]
			if holds {
				l.renewed = sent
			} else if known || time.Since(l.renewed) >= length {
				l.cancel(events.ErrLeaseLost)
			}
		}
		c.Mu.Unlock()
	}
}

// releaseAll releases the leases that are left when the worker stops. What it cannot release runs again when the lease
// ends.
func (d *dispatcher) releaseAll() {
	all := d.all()
	if len(all) == 0 {
		return
	}
	c, ctx := d.consumer, d.stopEnds // all the time that is left: a loaded server may take long to connect
	c.ForcedStop.Store(true)
	tokens, err := release(ctx, c, all)
	if err != nil {
		c.Log.WarnContext(ctx, "leases could not be released: their events are run again when they have run out",
			append(pgtx.LogError(err), pgtx.LogRows, len(all))...)
		return
	}
	var released []dispatch.Settlement
	for _, l := range all {
		if slices.Contains(tokens, l.row.Token) {
			released = append(released, dispatch.Settlement{
				Envelope: &l.row.Envelope, Outcome: dispatch.Released, Attempts: l.row.Attempts,
			})
		}
	}
	c.Report(ctx, released)
	if left := len(all) - len(released); left > 0 {
		c.Log.WarnContext(ctx, "leases not released at the stop, because their rows are locked or settled: unsettled "+
			"events run again when the lease runs out", pgtx.LogRows, left)
	}
}
