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
	stopped  bool
	stop     chan struct{} // closed when stopped
	wait     sync.WaitGroup
}

// wake makes sure that a claim begins after this call: by a further runner, so that one slow row
// does not hold up the rest of its type, or else by those at work. Ctx is what the runners live on.
func (c *consumer) wake(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again = true
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

// begin says how a runner should claim next; no rows: the runner is over.
func (c *consumer) begin(note *entry, emptied bool) (limit int, strict bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopped || emptied && !c.again:
	case c.runners > c.throttle.allowed:
		c.again = true // one of the others finds what this one would have
	default:
		c.again = false
		return c.throttle.next()
	}
	c.runners--
	c.entries = append(c.entries, note)
	return 0, false
}

// adjust lets the throttle know what came of a claim.
func (c *consumer) adjust(r dispatchResult, limit int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.throttle.adjust(r, limit, took)
}

// drain is one runner: it claims until nothing is left.
func (c *consumer) drain(ctx context.Context, note *entry) {
	backoff := firstBackoff
	emptied := false
	// After a lost connection its rows may seem taken until the old backend has ended, and nothing
	// rings then: so many empty claims are not believed.
	doubted := 0
	for {
		limit, strict := c.begin(note, emptied)
		if limit == 0 {
			return
		}
		started := c.now()
		result, err := c.dispatch(ctx, note, limit, strict)
		c.report(ctx, result.settled)
		if err != nil || result.lost {
			doubted = maxDoubted
		}
		if err != nil {
			emptied = false
			if ctx.Err() != nil {
				continue // halted: begin ends this runner
			}
			delay := time.Duration(float64(backoff) * (0.5 + c.random()/2))
			c.log.WarnContext(ctx, "dispatch interrupted, no attempt counted", logEventType, c.subscription.EventType,
				logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, delay.Milliseconds())
			c.pause(ctx, delay)
			backoff = min(2*backoff, maxBackoff)
			continue
		}
		backoff = firstBackoff
		emptied = result.rows == 0
		if emptied && doubted > 0 {
			doubted--
			emptied = false
			c.pause(ctx, doubtPause)
		}
		c.adjust(result, limit, c.now().Sub(started))
		if result.rows == limit {
			c.wake(ctx) // there may be more than one runner's work
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
