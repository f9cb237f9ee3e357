package dispatch

import (
	"context"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// dispatcher dispatches a consumer's events in row-locked mode. Each wake and each full claim adds a runner, up to the
// subscription's concurrency; a runner claims until a claim returns fewer rows
// than it may.
type dispatcher struct {
	consumer *Consumer

	// guarded by the consumer's lock
	sizer   batchSizer
	runners int
	entries []*journal.Entry // of runners that have ended
}

// Attach has c dispatch its events in row-locked mode.
func Attach(c *Consumer) { newDispatcher(c) }

func newDispatcher(c *Consumer) *dispatcher {
	d := &dispatcher{consumer: c, sizer: newBatchSizer(c.Subscription)}
	c.Wake, c.Await, c.Probe = d.wake, c.Running.Wait, d.probe
	return d
}

// wake makes sure that a claim begins after this call: by a further runner, so that a slow row does not delay the
// others of its type, or else by those that run.
func (d *dispatcher) wake(ctx context.Context, crashed bool) {
	c := d.consumer
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Again, c.Crashed = true, c.Crashed || crashed
	if d.runners >= d.sizer.allowed || c.Stopped {
		return
	}
	d.runners++
	var entry *journal.Entry
	if n := len(d.entries); n > 0 {
		entry, d.entries = d.entries[n-1], d.entries[:n-1]
	} else {
		entry = c.Journal.NewEntry(c.Subscription.EventType, d.runners)
	}
	c.Running.Go(func() { d.runUntilEmpty(ctx, entry) })
}

// runUntilEmpty is one runner.
func (d *dispatcher) runUntilEmpty(ctx context.Context, entry *journal.Entry) {
	c := d.consumer
	var wait pgtx.Backoff
	emptied := false
	c.AwaitServer(ctx)
	for now := d.next(ctx, entry, claim{}, emptied); now.limit > 0; now = d.next(ctx, entry, now, emptied) {
		started := time.Now()
		result, err := dispatch(ctx, c, entry, now)
		if now.crashed {
			c.Journal.CrashSlot.Release()
		}
		c.Report(ctx, result.settled)
		c.OpenTripped(ctx)
		if err != nil {
			d.interrupted(now, err)
			emptied = false
			if c.Isolate(ctx, err, now.limit, now.crashed) {
				continue
			}
			if ctx.Err() == nil {
				c.TryLater(ctx, wait.Next(), c.Stop, err)
			} else if result.rows > 0 {
				c.ForcedStop.Store(true)
			}
			continue // after a stop, next ends this runner
		}
		wait = pgtx.Backoff{}
		var recheck bool
		if emptied, recheck = d.adjust(now, result, time.Since(started)); recheck {
			pgtx.Pause(ctx, pgtx.RecheckPause, c.Stop)
		}
		if result.rows == now.limit {
			d.wake(ctx, false) // there may be work for another runner
		}
		c.AwaitServer(ctx)
	}
}

// next returns how a runner should claim next. Emptied: its last claim found everything that was due. Rows with crashes
// have every second turn, so that they hold up no others.
func (d *dispatcher) next(ctx context.Context, entry *journal.Entry, last claim, emptied bool) claim {
	c := d.consumer
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if !c.Stopped {
		more := !emptied || c.Again
		if c.Crashed && (!last.crashed || !more) && c.TakeCrashSlot(ctx) {
			c.Crashed = false // a poll may find more while this one claims
			// with checks at once: another run, after a deferred constraint, could be another crash
			return claim{limit: 1, checkDeferred: true, crashed: true}
		}
		if more && d.runners <= d.sizer.allowed {
			c.Again = false
			return d.sizer.next()
		}
		c.Again = more // another runner finds what this one would have
	}
	d.runners--
	d.entries = append(d.entries, entry)
	return claim{}
}

// adjust takes in the result of a claim, and reports whether it found everything, or is to be repeated after a pause.
func (d *dispatcher) adjust(how claim, r claimResult, took time.Duration) (emptied, recheck bool) {
	c := d.consumer
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if how.crashed {
		c.Crashed = c.Crashed || r.rows > 0
		return false, false
	}
	if r.lost {
		c.Recheck.Begin()
	}
	d.sizer.adjust(r, how.limit, took)
	if !how.keptBy.IsZero() {
		return false, false
	}
	if r.rows == 0 {
		recheck = c.Recheck.Next()
		return !recheck, recheck
	}
	if r.here || !r.keptBy.IsZero() {
		return false, false
	}
	// all that was due, unless rows are to run again, the size stopped the claim, or a lost backend may hold some
	return r.rows < how.limit && r.left == 0 && r.payload < stoppedClaim && c.Recheck <= 0, false
}

// probe runs events that wait for the breaker of a handler, one after the other, until one fails.
func (d *dispatcher) probe(ctx, _ context.Context, handler string, width int) *Probed {
	c := d.consumer
	found := &Probed{}
	entry := c.Journal.NewEntry(c.Subscription.EventType, probeRunner)
	for n := range width {
		result, err := dispatch(ctx, c, entry, claim{limit: 1, probe: handler, probed: found})
		c.Report(ctx, result.settled)
		if err != nil && ctx.Err() == nil {
			c.TryLater(ctx, 0, c.Stop, err)
		}
		if found.Failed = found.Failed || err != nil; found.Failed || result.rows == 0 || found.Calls == n {
			break
		}
	}
	return found
}

// probeRunner is the number of the journal entry of probes.
const probeRunner = 1 << 20

// interrupted takes in a claim that failed: the connection may be lost, or the batch too large for the server.
func (d *dispatcher) interrupted(how claim, err error) {
	d.consumer.Mu.Lock()
	defer d.consumer.Mu.Unlock()
	d.consumer.Recheck.Begin()
	if how.crashed {
		d.consumer.Crashed = true
		return
	}
	d.sizer.interrupted(err)
}
