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

// Dispatcher dispatches a consumer's events under leases.
type Dispatcher struct {
	consumer  *dispatch.Consumer
	completer *completer
	begun     sync.Once       // the completer and the heartbeat run
	stopEnds  context.Context // ends when a forced stop does; set before the first lease
	over      chan struct{}   // closed when no lease is left

	// guarded by the signal's lock
	signal      *dispatch.WakeSignal
	claiming    bool
	lastCrashed bool                 // the last claim was of rows with crashes
	leases      map[uuid.UUID]*lease // by token: each takes one place of the concurrency
}

// NewDispatcher returns the dispatcher of a consumer.
func NewDispatcher(c *dispatch.Consumer) *Dispatcher {
	return &Dispatcher{
		consumer: c, signal: dispatch.NewWakeSignal(), completer: newCompleter(c),
		leases: make(map[uuid.UUID]*lease), over: make(chan struct{}),
	}
}

// Connections is how many connections of the pool a leased consumer needs at once.
const Connections = 1 + completers + singles

// Consumer returns its consumer.
func (d *Dispatcher) Consumer() *dispatch.Consumer { return d.consumer }

// Watermark implements notify.Waker.
func (d *Dispatcher) Watermark() time.Time { return d.consumer.Watermark.Get() }

// LowerWatermark implements notify.Waker.
func (d *Dispatcher) LowerWatermark(t time.Time) { d.consumer.Watermark.Lower(t) }

// Wake makes sure that a claim begins after this call, once there is a place for another lease.
func (d *Dispatcher) Wake(ctx context.Context, crashed bool) {
	d.signal.Mu.Lock()
	defer d.signal.Mu.Unlock()
	d.signal.Again = true
	d.signal.Crashed = d.signal.Crashed || crashed
	d.claimMore(ctx)
}

// Halt lets no further claim begin.
func (d *Dispatcher) Halt() { d.signal.Halt() }

// Await waits, after Halt, for the handlers that run, and releases the leases that could not be settled.
func (d *Dispatcher) Await() {
	d.signal.Running.Wait()
	d.releaseAll()
	close(d.completer.results)
	close(d.over)
}

// start starts the completer and the heartbeat, until Await. Ctx is done when the worker's grace period is over.
func (d *Dispatcher) start(ctx context.Context) {
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
func (d *Dispatcher) claimMore(ctx context.Context) {
	s := d.signal
	if d.claiming || s.Stopped || !s.Again && !s.Crashed || len(d.leases) >= d.consumer.Subscription.Concurrency {
		return
	}
	d.claiming = true
	s.Running.Go(func() { d.claimUntilEmpty(ctx) })
}

// next returns how to claim: up to limit rows, with crashes or others. Zero: not at all.
func (d *Dispatcher) next(ctx context.Context) (limit int, crashed bool) {
	s := d.signal
	s.Mu.Lock()
	defer s.Mu.Unlock()
	subscription := d.consumer.Subscription
	free := subscription.Concurrency - len(d.leases)
	if free > 0 && !s.Stopped {
		// in turns, so that neither kind delays the other
		if s.Crashed && (!d.lastCrashed || !s.Again) && d.takeCrashSlot(ctx) {
			s.Crashed, d.lastCrashed = false, true // a poll may find more while this one claims
			return 1, true
		}
		if s.Again {
			s.Again, d.lastCrashed = false, false
			return min(free, subscription.BatchSize), false
		}
	}
	d.claiming = false
	return 0, false
}

func (d *Dispatcher) takeCrashSlot(ctx context.Context) bool {
	return d.consumer.Journal.CrashSlot.TryTake(d.consumer.Subscription.EventType, func() { d.Wake(ctx, true) })
}

// claimUntilEmpty claims until nothing is left or every place is taken.
func (d *Dispatcher) claimUntilEmpty(ctx context.Context) {
	s := d.signal
	var wait pgtx.Backoff
	for limit, crashed := d.next(ctx); limit > 0; limit, crashed = d.next(ctx) {
		found, err := claimLeases(ctx, d.consumer, limit, crashed)
		if crashed && len(found) == 0 {
			d.consumer.Journal.CrashSlot.Release() // otherwise drop does
		}
		d.hold(ctx, found)
		s.Mu.Lock()
		switch {
		case err != nil:
			s.Again = true
			s.Crashed = s.Crashed || crashed
			s.Recheck.Begin()
		case crashed:
			s.Crashed = s.Crashed || len(found) > 0
		default:
			// a claim ends early when its payloads are large
			s.Again = s.Again || len(found) == limit || payload(found) >= dispatch.BatchBytes/2
		}
		recheck := err == nil && len(found) == 0 && !crashed && s.Recheck.Next()
		s.Again = s.Again || recheck
		s.Mu.Unlock()
		switch {
		case err != nil && ctx.Err() == nil:
			d.consumer.TryLater(ctx, wait.Next(), s.Stop, err)
		case recheck:
			pgtx.Pause(ctx, pgtx.RecheckPause, s.Stop)
		default:
			wait = pgtx.Backoff{}
		}
	}
}

func payload(leases []*lease) (bytes int) {
	for _, l := range leases {
		bytes += len(l.row.Envelope.Payload)
	}
	return bytes
}

// hold begins the work on new leases.
func (d *Dispatcher) hold(ctx context.Context, found []*lease) {
	if len(found) == 0 {
		return
	}
	d.begun.Do(func() { d.start(ctx) })
	s := d.signal
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, l := range found {
		work, cancel := context.WithCancelCause(ctx)
		l.cancel = cancel
		d.leases[l.row.Token] = l
		if s.Stopped {
			cancel(events.ErrStopping) // before it begins
		}
		s.Running.Go(func() {
			defer cancel(nil)
			e := &execution{consumer: d.consumer, completer: d.completer, lease: l}
			if !e.run(work) {
				d.drop(ctx, l)
			}
		})
	}
}

// drop frees the place of l, and the crash slot if l holds it.
func (d *Dispatcher) drop(ctx context.Context, l *lease) {
	s := d.signal
	s.Mu.Lock()
	delete(d.leases, l.row.Token)
	s.Crashed = s.Crashed || l.row.Crashes > 0
	s.Mu.Unlock()
	if l.row.Crashes > 0 {
		d.consumer.Journal.CrashSlot.Release()
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	d.claimMore(ctx)
}

// all returns the leases in flight.
func (d *Dispatcher) all() []*lease {
	d.signal.Mu.Lock()
	defer d.signal.Mu.Unlock()
	return slices.Collect(maps.Values(d.leases))
}

// heartbeat renews the leases in flight until none is left after a stop.
func (d *Dispatcher) heartbeat(ctx context.Context) {
	length := d.consumer.Subscription.Lease
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
		held, err := renew(ctx, d.consumer, all, make([]string, len(all)))
		if err != nil || len(held) < len(all) { // some are locked at the moment
			next = pgtx.Jittered(max(min(every/4, pgtx.MaxBackoff), pgtx.MinRenewal/2))
		}
		if err != nil {
			d.consumer.Log.WarnContext(ctx, "leases could not be renewed", append(pgtx.LogError(err),
				pgtx.LogEventType, d.consumer.Subscription.EventType, pgtx.LogRows, len(all),
				pgtx.LogDelay, next.Milliseconds())...)
		}
		d.signal.Mu.Lock()
		for _, l := range all {
			holds, known := held[l.row.Token]
			if holds {
				l.renewed = sent
			} else if known || time.Since(l.renewed) >= length {
				l.cancel(events.ErrLeaseLost)
			}
		}
		d.signal.Mu.Unlock()
	}
}

// releaseAll releases the leases that are left when the worker stops. What it cannot release runs again when the lease
// ends.
func (d *Dispatcher) releaseAll() {
	all := d.all()
	if len(all) == 0 {
		return
	}
	c, ctx := d.consumer, d.stopEnds // all the time that is left: a loaded server may take long to connect
	c.ForcedStop.Store(true)
	attributes := []any{pgtx.LogEventType, c.Subscription.EventType, pgtx.LogRows}
	tokens, err := release(ctx, c, all)
	if err != nil {
		c.Log.WarnContext(ctx, "leases could not be released: their events are run again when they have run out",
			append(append(attributes, len(all)), pgtx.LogError(err)...)...)
		return
	}
	var released []dispatch.Settlement
	for _, l := range all {
		if slices.Contains(tokens, l.row.Token) {
			released = append(released, dispatch.Settlement{
				Envelope: l.row.Envelope, Outcome: dispatch.Released, Attempts: l.row.Attempts,
			})
		}
	}
	c.Report(ctx, released)
	if left := len(all) - len(released); left > 0 {
		c.Log.WarnContext(ctx, "left in flight: these events are locked or settled; what is not settled is run again "+
			"when its lease has run out", append(attributes, left)...)
	}
}
