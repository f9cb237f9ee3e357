package postgres

import (
	"context"
	"time"
)

// rowLocked dispatches a consumer's events in transactions that claim, handle and settle them. Each wake and
// each full claim adds a runner, up to the subscription's concurrency; a runner claims until nothing is left.
type rowLocked struct {
	*consumer
	waking

	throttle throttle
	runners  int
	entries  []*entry // of runners that are not at work
}

func newRowLocked(c *consumer) *rowLocked {
	return &rowLocked{consumer: c, waking: newWaking(), throttle: newThrottle(c.subscription)}
}

// wake makes sure that a claim begins after this call: by a further runner, so that one slow row
// does not hold up the rest of its type, or else by those at work.
func (c *rowLocked) wake(ctx context.Context, crashed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again = true
	c.crashed = c.crashed || crashed
	if c.runners >= c.throttle.allowed || c.stopped {
		return
	}
	c.runners++
	var note *entry
	if n := len(c.entries); n > 0 {
		note, c.entries = c.entries[n-1], c.entries[:n-1]
	} else {
		note = &entry{journal: c.journal, eventType: c.subscription.EventType, runner: c.runners}
	}
	c.wait.Go(func() { c.drain(ctx, note) })
}

// claim is how a runner claims.
type claim struct {
	limit   int  // none: the runner is over
	strict  bool // deferred constraints are checked handler by handler
	crashed bool // only rows that a worker died of, of which this process runs one at a time
}

// begin says how a runner should claim next. Emptied: its last claim found nothing. Crashed rows
// have every second turn, so that they hold up nothing else.
func (c *rowLocked) begin(ctx context.Context, note *entry, last claim, emptied bool) claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		more := !emptied || c.again
		if c.crashed && (!last.crashed || !more) && c.journal.turn.take(c.consumer, func() { c.wake(ctx, true) }) {
			c.crashed = false // a look may find more while this one claims
			// strictly at once: a second run, for a deferred constraint, would be one more chance to die
			return claim{limit: 1, strict: true, crashed: true}
		}
		if more && c.runners <= c.throttle.allowed {
			c.again = false
			limit, strict := c.throttle.next()
			return claim{limit: limit, strict: strict}
		}
		c.again = more // one of the others finds what this one would have
	}
	c.runners--
	c.entries = append(c.entries, note)
	return claim{}
}

// adjust takes in what came of a claim, and reports whether it found nothing and is to be believed.
func (c *rowLocked) adjust(claimed claim, r dispatchResult, took time.Duration) (emptied bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claimed.crashed {
		c.crashed = c.crashed || r.rows > 0
		return false
	}
	if r.lost {
		c.doubt.raise()
	}
	c.throttle.adjust(r, claimed.limit, took)
	return r.rows == 0
}

// doubted reports whether an empty claim is to be repeated.
func (c *rowLocked) doubted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubt.lessen()
}

// interrupted takes in a claim that came to nothing: the connection may be lost, or the batch have
// been more than the server can do in time.
func (c *rowLocked) interrupted(how claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubt.raise()
	if how.crashed {
		c.crashed = true
		return
	}
	c.throttle.interrupted()
}

// drain is one runner: it claims until nothing is left.
func (c *rowLocked) drain(ctx context.Context, note *entry) {
	var wait backoff
	emptied := false
	for now := c.begin(ctx, note, claim{}, emptied); now.limit > 0; now = c.begin(ctx, note, now, emptied) {
		started := time.Now()
		result, err := c.dispatch(ctx, note, now)
		if now.crashed {
			c.journal.turn.giveBack()
		}
		c.report(ctx, result.settled)
		if err != nil {
			c.interrupted(now)
			emptied = false
			if ctx.Err() != nil {
				if result.rows > 0 {
					c.cutOff.Store(true)
				}
				continue // halted: begin ends this runner
			}
			c.tryLater(ctx, wait.next(), c.stop, err)
			continue
		}
		wait = backoff{}
		emptied = c.adjust(now, result, time.Since(started))
		if emptied && c.doubted() {
			emptied = false
			pause(ctx, doubtPause, c.stop)
		}
		if result.rows == now.limit {
			c.wake(ctx, false) // there may be more than one runner's work
		}
	}
}
