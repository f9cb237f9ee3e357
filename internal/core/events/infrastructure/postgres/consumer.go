package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
)

// Delays between the attempts of a claim or of the doorbell while the database does not answer,
// doubling and jittered.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
)

// consumer dispatches the events of one type, in its mode.
type consumer struct {
	subscription events.Subscription
	handlers     []events.Registration // of the subscription, in order
	generation   events.Generation
	worker       string // whose leases are its: the process's id and name
	pool         *pgxpool.Pool
	log          *slog.Logger
	settled      func(Settlement)
	journal      *journal
	floor        floor
	mode         mode
	cutOff       atomic.Bool // a stop has cut work off
}

// mode is how the events of a consumer are held while its handlers run.
type mode interface {
	// wake makes sure that a claim begins after this call. Crashed says that there are due rows that a
	// worker died of. Ctx is what the work lives on.
	wake(ctx context.Context, crashed bool)
	// halt lets no further claim begin.
	halt()
	// await waits, after halt, for the events that are held, and gives up what could not be settled.
	await()
}

func newConsumer(config Config, s events.Subscription, journal *journal) *consumer {
	c := &consumer{
		subscription: s, handlers: s.Handlers(), generation: config.Generation, pool: config.Pool, log: config.Log,
		worker:  fmt.Sprintf("%s %.256s", config.Worker, config.Name),
		settled: config.OnSettled, journal: journal,
	}
	if s.Mode == events.Leased {
		c.mode = newLeased(c)
	} else {
		c.mode = newRowLocked(c)
	}
	return c
}

// Connections is how many connections of the pool a consumer needs at once.
func Connections(s events.Subscription) int {
	s = s.WithDefaults()
	if s.Mode == events.Leased {
		return 1 + completers + singles
	}
	return s.Concurrency
}

// waking is how either mode is woken and halted.
type waking struct {
	mu      sync.Mutex
	again   bool // woken since the last claim began
	crashed bool // there may be due rows that a worker died of
	doubt   doubt
	stopped bool
	stop    chan struct{} // closed when stopped
	wait    sync.WaitGroup
}

func newWaking() waking { return waking{stop: make(chan struct{})} }

func (w *waking) halt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.stopped = true
		close(w.stop)
	}
}

func (w *waking) await() { w.wait.Wait() }

// doubt is how many empty claims are not to be believed: after a lost connection its backend may hold rows until
// it has ended, and nothing rings then. They are repeated for two seconds.
type doubt int

const (
	maxDoubted = 20
	doubtPause = 100 * time.Millisecond
)

func (d *doubt) raise() { *d = maxDoubted }

// lessen reports whether an empty claim is to be repeated.
func (d *doubt) lessen() bool {
	*d = max(*d-1, -1)
	return *d >= 0
}

// pause waits for d, or until stop is closed.
func pause(ctx context.Context, d time.Duration, stop <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stop:
	}
}

// backoff grows with each failure in a row, jittered.
type backoff struct{ delay time.Duration }

func (b *backoff) next() time.Duration {
	b.delay = min(max(2*b.delay, firstBackoff), maxBackoff)
	return jittered(b.delay)
}

// jittered spreads the attempts of many workers over the upper half of d.
func jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.5 + rand.Float64()/2))
}

// tryLater logs an error that costs no attempt, and waits until the next try, or until stop is closed.
func (c *consumer) tryLater(ctx context.Context, delay time.Duration, stop <-chan struct{}, err error) {
	c.log.WarnContext(ctx, "interrupted, no attempt counted", logEventType, c.subscription.EventType,
		logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, delay.Milliseconds())
	pause(ctx, delay, stop)
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
		if r.Executor == nil { // which has no transaction while it is at work
			longest = max(longest, r.CallTimeout()+abandonAfter+statementTimeout)
		}
	}
	return longest
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
		logAttempts, row.attempts+1, logDuration, time.Since(started).Milliseconds(), logResult, result, logErrorClass, class)
}

// logPanic says where a handler panicked, not with what: that may quote a payload and is in last_error. Of a batch
// it names the first event; the rows then run alone.
func (c *consumer) logPanic(ctx context.Context, r events.Registration, batch []events.Envelope, err error) {
	if panicked, ok := errors.AsType[*events.PanicError](err); ok {
		c.log.ErrorContext(ctx, "handler panicked", logHandler, r.Name, logEventID, batch[0].EventID,
			logEventType, c.subscription.EventType, logRows, len(batch), logSee, showsError(batch[0].EventID), logStack, string(panicked.Stack))
	}
}

// logSettlement says, once it is committed, what became of an event that some handler failed.
func (c *consumer) logSettlement(ctx context.Context, s Settlement) {
	e := s.Envelope
	for name, class := range s.classes {
		attributes := []any{logEventID, e.EventID, logEventType, e.EventType, logSource, e.Source, logTarget, e.Target,
			logWorkspaceID, workspaceText(e.WorkspaceID), logHandler, name, logErrorClass, class, logAttempts, s.Attempts}
		if s.Outcome == Failed {
			c.log.ErrorContext(ctx, "event failed", append(attributes, logSee, showsError(e.EventID))...)
		} else {
			c.log.WarnContext(ctx, "event will be retried", append(attributes, logDelay, s.Delay.Milliseconds())...)
		}
	}
}
