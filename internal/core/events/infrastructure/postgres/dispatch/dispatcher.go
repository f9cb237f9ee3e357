package dispatch

import (
	"context"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Dispatcher dispatches a consumer's events in row-locked mode. Each wake and each full claim adds a runner, up to the
// subscription's concurrency; a runner claims until nothing is left.
type Dispatcher struct {
	consumer *Consumer
	signal   *WakeSignal

	// guarded by the signal's lock
	sizer   batchSizer
	runners int
	entries []*journal.Entry // of runners that have ended
}

// NewDispatcher returns the dispatcher of a consumer.
func NewDispatcher(c *Consumer) *Dispatcher {
	return &Dispatcher{consumer: c, signal: NewWakeSignal(), sizer: newBatchSizer(c.Subscription)}
}

// Consumer returns its consumer.
func (d *Dispatcher) Consumer() *Consumer { return d.consumer }

// Watermark implements notify.Waker.
func (d *Dispatcher) Watermark() time.Time { return d.consumer.Watermark.Get() }

// LowerWatermark implements notify.Waker.
func (d *Dispatcher) LowerWatermark(t time.Time) { d.consumer.Watermark.Lower(t) }

// Wake makes sure that a claim begins after this call: by a further runner, so that a slow row does not delay the
// others of its type, or else by those that run.
func (d *Dispatcher) Wake(ctx context.Context, crashed bool) {
	s := d.signal
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Again = true
	s.Crashed = s.Crashed || crashed
	if d.runners >= d.sizer.allowed || s.Stopped {
		return
	}
	d.runners++
	var entry *journal.Entry
	if n := len(d.entries); n > 0 {
		entry, d.entries = d.entries[n-1], d.entries[:n-1]
	} else {
		entry = d.consumer.Journal.NewEntry(d.consumer.Subscription.EventType, d.runners)
	}
	s.Running.Go(func() { d.runUntilEmpty(ctx, entry) })
}

// Halt lets no further claim begin.
func (d *Dispatcher) Halt() { d.signal.Halt() }

// Await waits, after Halt, for the handlers that run.
func (d *Dispatcher) Await() { d.signal.Running.Wait() }

// runUntilEmpty is one runner.
func (d *Dispatcher) runUntilEmpty(ctx context.Context, entry *journal.Entry) {
	c := d.consumer
	var wait pgtx.Backoff
	emptied := false
	for now := d.next(ctx, entry, claim{}, emptied); now.limit > 0; now = d.next(ctx, entry, now, emptied) {
		started := time.Now()
		result, err := dispatch(ctx, c, entry, now)
		if now.crashed {
			c.Journal.CrashSlot.Release()
		}
		c.Report(ctx, result.settled)
		if err != nil {
			d.interrupted(now)
			emptied = false
			if ctx.Err() != nil {
				if result.rows > 0 {
					c.ForcedStop.Store(true)
				}
				continue // next ends this runner: the dispatcher is halted
			}
			c.TryLater(ctx, wait.Next(), d.signal.Stop, err)
			continue
		}
		wait = pgtx.Backoff{}
		emptied = d.adjust(now, result, time.Since(started))
		if emptied && d.recheck() {
			emptied = false
			pgtx.Pause(ctx, pgtx.RecheckPause, d.signal.Stop)
		}
		if result.rows == now.limit {
			d.Wake(ctx, false) // there may be work for another runner
		}
	}
}

// next returns how a runner should claim next. Emptied: its last claim found nothing. Rows with crashes have every
// second turn, so that they hold up no others.
func (d *Dispatcher) next(ctx context.Context, entry *journal.Entry, last claim, emptied bool) claim {
	s := d.signal
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.Stopped {
		more := !emptied || s.Again
		if s.Crashed && (!last.crashed || !more) && d.takeCrashSlot(ctx) {
			s.Crashed = false // a poll may find more while this one claims
			// with checks at once: another run, after a deferred constraint, could be another crash
			return claim{limit: 1, checkDeferred: true, crashed: true}
		}
		if more && d.runners <= d.sizer.allowed {
			s.Again = false
			limit, checkDeferred := d.sizer.next()
			return claim{limit: limit, checkDeferred: checkDeferred}
		}
		s.Again = more // another runner finds what this one would have
	}
	d.runners--
	d.entries = append(d.entries, entry)
	return claim{}
}

func (d *Dispatcher) takeCrashSlot(ctx context.Context) bool {
	return d.consumer.Journal.CrashSlot.TryTake(d.consumer.Subscription.EventType, func() { d.Wake(ctx, true) })
}

// adjust takes in the result of a claim, and reports whether it found nothing.
func (d *Dispatcher) adjust(how claim, r claimResult, took time.Duration) (emptied bool) {
	s := d.signal
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if how.crashed {
		s.Crashed = s.Crashed || r.rows > 0
		return false
	}
	if r.lost {
		s.Recheck.Begin()
	}
	d.sizer.adjust(r, how.limit, took)
	return r.rows == 0
}

// recheck reports whether an empty claim is to be repeated.
func (d *Dispatcher) recheck() bool {
	d.signal.Mu.Lock()
	defer d.signal.Mu.Unlock()
	return d.signal.Recheck.Next()
}

// interrupted takes in a claim that failed: the connection may be lost, or the batch too large for the server.
func (d *Dispatcher) interrupted(how claim) {
	s := d.signal
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Recheck.Begin()
	if how.crashed {
		s.Crashed = true
		return
	}
	d.sizer.interrupted()
}
