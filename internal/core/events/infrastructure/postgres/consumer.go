package postgres

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
)

// Delays between the attempts of a runner or of the doorbell while the database does not answer,
// doubling and jittered.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
)

// After a lost connection, empty claims are repeated for two seconds.
const (
	maxDoubted = 20
	doubtPause = 100 * time.Millisecond
)

// consumer dispatches the events of one type. Each wake and each full claim adds a runner, up to the
// subscription's concurrency; a runner claims until nothing is left.
type consumer struct {
	subscription events.Subscription
	handlers     []events.Registration // of the subscription, in order
	generation   events.Generation
	pool         *pgxpool.Pool
	log          *slog.Logger
	now          func() time.Time
	random       func() float64
	settled      func(Settlement)
	journal      *journal
	floor        floor

	mu       sync.Mutex
	throttle throttle
	runners  int
	entries  []*entry // of runners that are not at work
	again    bool     // woken since the last claim began
	crashed  bool     // there may be due rows that a worker died of
	doubted  int      // empty claims that are not believed
	stopped  bool
	stop     chan struct{} // closed when stopped
	wait     sync.WaitGroup
}

// wake makes sure that a claim begins after this call: by a further runner, so that one slow row
// does not hold up the rest of its type, or else by those at work. Crashed says that there are rows
// a worker died of. Ctx is what the runners live on.
func (c *consumer) wake(ctx context.Context, crashed bool) {
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

// halt lets no further claim begin; runners end after the one in hand.
func (c *consumer) halt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.stopped = true
		close(c.stop)
	}
}

// claim is how a runner claims.
type claim struct {
	limit   int  // none: the runner is over
	strict  bool // deferred constraints are checked handler by handler
	crashed bool // only rows that a worker died of, of which this process runs one at a time
}

// begin says how a runner should claim next. Emptied: its last claim found nothing. Crashed rows
// have every second turn, so that they hold up nothing else.
func (c *consumer) begin(ctx context.Context, note *entry, last claim, emptied bool) claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		more := !emptied || c.again
		if c.crashed && (!last.crashed || !more) && c.journal.turn.take(c, func() { c.wake(ctx, true) }) {
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
// After a lost connection its rows may seem taken until the old backend has ended, and nothing
// rings then: so many empty claims are not believed.
func (c *consumer) adjust(claimed claim, r dispatchResult, took time.Duration) (emptied bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claimed.crashed {
		c.crashed = c.crashed || r.rows > 0
		return false
	}
	if r.lost {
		c.doubted = maxDoubted
	}
	c.throttle.adjust(r, claimed.limit, took)
	return r.rows == 0
}

// doubt reports whether an empty claim is to be repeated.
func (c *consumer) doubt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubted = max(c.doubted-1, -1)
	return c.doubted >= 0
}

// interrupted takes in a claim that came to nothing: the connection may be lost, or the batch have
// been more than the server can do in time.
func (c *consumer) interrupted(how claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubted = maxDoubted
	if how.crashed {
		c.crashed = true
		return
	}
	c.throttle.undone(false)
}

// drain is one runner: it claims until nothing is left.
func (c *consumer) drain(ctx context.Context, note *entry) {
	backoff := firstBackoff
	emptied := false
	for now := c.begin(ctx, note, claim{}, emptied); now.limit > 0; now = c.begin(ctx, note, now, emptied) {
		started := c.now()
		result, err := c.dispatch(ctx, note, now)
		if now.crashed {
			c.journal.turn.giveBack()
		}
		c.report(ctx, result.settled)
		if err != nil {
			c.interrupted(now)
			emptied = false
			if ctx.Err() != nil {
				continue // halted: begin ends this runner
			}
			delay := time.Duration(float64(backoff) * (0.5 + c.random()/2))
			c.log.WarnContext(ctx, "dispatch interrupted, no attempt counted", logEventType, c.subscription.EventType,
				logRows, now.limit, logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, delay.Milliseconds())
			c.pause(ctx, delay)
			backoff = min(2*backoff, maxBackoff)
			continue
		}
		backoff = firstBackoff
		emptied = c.adjust(now, result, c.now().Sub(started))
		if emptied && c.doubt() {
			emptied = false
			c.pause(ctx, doubtPause)
		}
		if result.rows == now.limit {
			c.wake(ctx, false) // there may be more than one runner's work
		}
	}
}

// report tells of what was settled.
func (c *consumer) report(ctx context.Context, settled []Settlement) {
	for _, s := range settled {
		c.logSettlement(ctx, s)
		if c.settled != nil {
			c.settled(s)
		}
	}
}

// idleTimeout leaves every handler its own time between two statements.
func (c *consumer) idleTimeout() time.Duration {
	longest := idleTimeout
	for _, r := range c.handlers {
		longest = max(longest, r.CallTimeout()+abandonAfter+statementTimeout)
	}
	return longest
}

func (c *consumer) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.stop:
	}
}

func (c *consumer) logHandled(ctx context.Context, r events.Registration, row claimed, started time.Time, failures map[string]failure) {
	result := "handled"
	class := ""
	if f, ok := failures[r.Name]; ok {
		result, class = "failed", f.class
	}
	e := row.envelope
	c.log.DebugContext(ctx, "event dispatched", logEventID, e.EventID, logEventType, e.EventType, logSource, e.Source,
		logTarget, e.Target, logWorkspaceID, workspaceText(e.WorkspaceID), logHandler, r.Name,
		logAttempts, row.attempts+1, logDuration, c.now().Sub(started).Milliseconds(), logResult, result, logErrorClass, class)
}

// logSettlement says, once it is committed, what became of an event that some handler failed.
func (c *consumer) logSettlement(ctx context.Context, s Settlement) {
	e := s.Envelope
	for name, class := range s.classes {
		attributes := []any{logEventID, e.EventID, logEventType, e.EventType, logSource, e.Source, logTarget, e.Target,
			logWorkspaceID, workspaceText(e.WorkspaceID), logHandler, name, logErrorClass, class, logAttempts, s.Attempts}
		if s.Outcome == Failed {
			c.log.ErrorContext(ctx, "event failed: see last_error of its row in core.outbox", attributes...)
		} else {
			c.log.WarnContext(ctx, "event will be retried", append(attributes, logDelay, s.Delay.Milliseconds())...)
		}
	}
}
