package dispatch

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// Consumer is what both modes know of one subscription. The dispatcher of its mode sets Wake and Await.
type Consumer struct {
	Subscription events.Subscription
	Handlers     []events.Registration // of the subscription, in order
	Pool         *pgxpool.Pool
	Journal      *journal.Journal
	Log          *slog.Logger
	Telemetry    *telemetry.Consumer
	Watermark    Watermark
	Relay        Relay       // nil: its events do not go through a broker
	ForcedStop   atomic.Bool // work was cancelled by a stop
	progress     atomic.Int64
	// OnSettled is called after each commit for every row that it settled or made pending again, from several goroutines.
	// It must not block. Nil: nothing is called.
	OnSettled func(Settlement)

	// Wake makes sure that a claim begins after this call. Crashed says that rows with crashes are due.
	Wake func(ctx context.Context, crashed bool)
	// Await waits, after Halt, for the handlers that run, and gives up what could not be settled.
	Await func()
	// Probe runs up to width events that wait for the breaker of a handler, until one fails. It waits for them until limit
	// ends; ctx is that of handlers.
	Probe func(ctx, limit context.Context, handler string, width int) *Probed
	// Tripped gets a value when this consumer has found an open breaker. Nil: nothing waits for that.
	Tripped chan<- struct{}
	// Leases returns how many leases are in flight, and is called under the lock. Nil: there are none.
	Leases func() int

	Running sync.WaitGroup // the goroutines of the consumer
	Stop    chan struct{}  // closed by Halt

	Mu      sync.Mutex // guards the following
	Stopped bool
	Again   bool // woken since the last claim began
	Crashed bool // rows with crashes may be due
	Recheck Recheck

	failures map[uuid.UUID]failureCount // see tooOften
	held     map[*Row][]Row             // claims that are being handled under row locks, by their first row

	rolledBack  int       // batches since the last warning
	nextWarning time.Time // none before

	breakers  breakers
	settled   atomic.Int64 // events, but those that are quarantined
	outage    outage
	savepoint string // of a handler: a name that handlers do not use, and one text of each process in pg_stat_statements
}

// NewConsumer returns the consumer of a valid subscription.
func NewConsumer(s events.Subscription, pool *pgxpool.Pool, j *journal.Journal, log *slog.Logger,
	t *telemetry.Telemetry) *Consumer {
	return &Consumer{
		Subscription: s, Handlers: s.Handlers(), Pool: pool, Journal: j, Log: log.With(pgtx.LogEventType, s.EventType),
		Telemetry: t.Consumer(s.EventType, s.Handlers(), string(Delivered), string(Retried), string(Failed),
			string(Released), string(Quarantined)),
		Stop: make(chan struct{}), failures: make(map[uuid.UUID]failureCount),
		held: make(map[*Row][]Row), savepoint: "spectral_" + hex.EncodeToString(j.Worker[:]),
	}
}

// Halt lets no further claim begin. It may be called more than once.
func (c *Consumer) Halt() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if !c.Stopped {
		c.Stopped = true
		close(c.Stop)
	}
}

// Held returns the rows that are being handled under a row lock: polls see them as due.
func (c *Consumer) Held() (ids []string, occurredAt []time.Time) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, rows := range c.held {
		for i := range rows {
			ids, occurredAt = append(ids, rows[i].Envelope.EventID.String()), append(occurredAt, rows[i].Envelope.OccurredAt)
		}
	}
	return ids, occurredAt
}

// Progress returns a number that grows with what is claimed and settled, and at each call while rows are being handled.
func (c *Consumer) Progress() int64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if len(c.held) > 0 || c.Leases != nil && c.Leases() > 0 {
		return c.progress.Add(1)
	}
	return c.progress.Load()
}

// hold records that the rows of a claim are being handled. Unhold ends that, and is called before any of them is made
// pending again, whose notification may come at once.
func (c *Consumer) hold(rows []Row) (unhold func()) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.held[&rows[0]] = rows
	return func() {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		delete(c.held, &rows[0])
	}
}

// TakeCrashSlot reports whether the consumer may claim a row with crashes now. If not, it is woken when it may.
func (c *Consumer) TakeCrashSlot(ctx context.Context) bool {
	return c.Journal.CrashSlot.TryTake(c.Subscription.EventType, func() { c.Wake(ctx, true) })
}

// countRollback counts a batch that was rolled back. Warn says that a warning is due, and n how many batches it is for.
func (c *Consumer) countRollback(now time.Time) (n int, warn bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.rolledBack++
	n, warn = c.rolledBack, !now.Before(c.nextWarning)
	if warn {
		c.rolledBack, c.nextWarning = 0, now.Add(pgtx.RollbackLogPause)
	}
	return n, warn
}

// Recheck is how many empty claims are repeated. After a lost connection its backend may hold rows for a moment, and no
// notification comes when it ends.
type Recheck int

// maxRechecks, with a pause after each, make two seconds.
const maxRechecks = 20

// Begin starts the repetitions.
func (r *Recheck) Begin() { *r = maxRechecks }

// Next counts an empty claim, and reports whether to repeat it.
func (r *Recheck) Next() bool {
	*r = max(*r-1, -1)
	return *r >= 0
}

// HandlersFor returns the handlers that a row is meant for. If the row itself is at fault, it returns none, and the
// failure.
func (c *Consumer) HandlersFor(row Row) ([]events.Registration, map[string]Failure) {
	failures := make(map[string]Failure)
	if row.Corrupt != nil { // what ran before is unknown: a person has to look at it
		failures["outbox"] = Failure{Class: "CorruptRow", disposition: terminal, message: row.Corrupt.Error()}
		return nil, failures
	}
	handlers := c.handlersOf(&row.Envelope)
	if len(handlers) == 0 {
		failures[string(row.Envelope.Target)] = Classify(events.ErrNoHandler, 0)
	}
	return handlers, failures
}

func (c *Consumer) handlersOf(e *events.Envelope) []events.Registration {
	if e.Target == "" {
		return c.Handlers
	}
	return slices.DeleteFunc(slices.Clone(c.Handlers), func(r events.Registration) bool { return !handles(r, e) })
}

// handles reports whether a handler of an event's type is one of those that the event is for.
func handles(r events.Registration, e *events.Envelope) bool {
	return e.Target == "" || e.Target == r.Scope()
}

// idleTimeout gives every handler its timeout between two statements.
func (c *Consumer) idleTimeout() time.Duration {
	longest := pgtx.IdleTimeout
	for _, r := range c.Handlers {
		if r.Executor == nil { // which has no transaction while it runs
			longest = max(longest, r.CallTimeout()+pgtx.AbandonAfter+pgtx.StatementTimeout)
		}
	}
	return longest
}

// TryLater logs an error that costs no attempt, of an outage only the first, and waits for delay or until stop is
// closed.
func (c *Consumer) TryLater(ctx context.Context, delay time.Duration, stop <-chan struct{}, err error) {
	if pgtx.ServerState(err) {
		c.serverFailed(ctx, err)
	} else {
		c.Log.WarnContext(ctx, "claim failed and is retried; no attempt counted",
			append(pgtx.LogError(err), pgtx.LogDelay, delay.Milliseconds())...)
	}
	pgtx.Pause(ctx, delay, stop)
}

// Report counts and logs what was settled, and passes it on to OnSettled.
func (c *Consumer) Report(ctx context.Context, settled []Settlement) {
	c.progress.Add(int64(len(settled)))
	for i := 0; i < len(settled); { // mostly all have one outcome
		n := 1
		for i+n < len(settled) && settled[i+n].Outcome == settled[i].Outcome {
			n++
		}
		c.Telemetry.Settled(ctx, string(settled[i].Outcome), n)
		i += n
	}
	for _, s := range settled {
		if s.Outcome == Delivered && c.outage.succeeded() {
			c.Log.InfoContext(ctx, "Postgres works again: events are handled")
		}
		if s.Outcome != Quarantined {
			c.settled.Add(1)
		}
		c.logSettlement(ctx, s)
		if s.Outcome == Failed || s.Outcome == Quarantined {
			c.Telemetry.Failed(telemetry.Continue(ctx, s.Envelope.TraceContext), telemetry.FailedEvent{
				EventID: s.Envelope.EventID, EventType: s.Envelope.EventType, Source: s.Envelope.Source,
				Target: s.Envelope.Target, Classes: s.classes, Attempts: s.Attempts,
			})
		}
		if c.OnSettled != nil {
			c.OnSettled(s)
		}
	}
}

// LogHandled logs one call of a handler for a row, which began at started.
func (c *Consumer) LogHandled(ctx context.Context, r events.Registration, row *Row, started time.Time,
	failures map[string]Failure) {
	result, class := "handled", ""
	if f, ok := failures[r.Name]; ok {
		result, class = "failed", f.Class
	}
	e := &row.Envelope
	if !c.Log.Enabled(ctx, slog.LevelInfo) || class == "" && !c.Telemetry.Logged(e.EventID) {
		return
	}
	c.Log.LogAttrs(telemetry.Continue(ctx, e.TraceContext), slog.LevelInfo, "event dispatched",
		slog.String(pgtx.LogEventID, e.EventID.String()), slog.String(pgtx.LogSource, string(e.Source)),
		slog.String(pgtx.LogTarget, string(e.Target)), slog.String(pgtx.LogWorkspaceID, pgtx.WorkspaceText(e.WorkspaceID)),
		slog.String(pgtx.LogHandler, r.Name), slog.Int(pgtx.LogAttempts, row.Attempts+1),
		slog.Int64(pgtx.LogDuration, time.Since(started).Milliseconds()), slog.String(pgtx.LogResult, result),
		slog.String(pgtx.LogErrorClass, class))
}

// Observe calls a handler for events, and records the call.
func (c *Consumer) Observe(ctx context.Context, r events.Registration, batch []events.Envelope,
	handle func(context.Context) error) (err error) {
	ctx, end := c.Telemetry.Handle(ctx, r.Name, batch)
	class := classPanic
	defer func() { end(class) }()
	err = handle(ctx)
	class = ""
	if err != nil {
		class = Classify(err, 0).Class
	}
	return err
}

// LogPanic logs where a handler panicked. With what, which may quote a payload, is in last_error. Of a batch it names
// the first event; the rows then run one by one.
func (c *Consumer) LogPanic(ctx context.Context, r events.Registration, batch []events.Envelope, err error) {
	if panicked, ok := errors.AsType[*events.PanicError](err); ok {
		id := batch[0].EventID
		c.Log.ErrorContext(ctx, "handler panicked", pgtx.LogHandler, r.Name, pgtx.LogEventID, id,
			pgtx.LogRows, len(batch), pgtx.LogSee, pgtx.ShowCommand(id), pgtx.LogStack, string(panicked.Stack))
	}
}

// logSettlement logs what became of an event, once that is committed, for each handler that failed.
func (c *Consumer) logSettlement(ctx context.Context, s Settlement) {
	ctx = telemetry.Continue(ctx, s.Envelope.TraceContext)
	for name, class := range s.classes {
		attributes := append(logEnvelope(*s.Envelope),
			pgtx.LogHandler, name, pgtx.LogErrorClass, class, pgtx.LogAttempts, s.Attempts)
		log := c.Log.With(attributes...)
		switch see := pgtx.ShowCommand(s.Envelope.EventID); s.Outcome {
		case Failed:
			log.ErrorContext(ctx, "event failed", pgtx.LogSee, see)
		case Quarantined:
			log.ErrorContext(ctx, "event quarantined: its row cannot be written, and no worker claims it", pgtx.LogSee, see)
		default:
			level := slog.LevelWarn
			if s.waiting {
				level = slog.LevelDebug
			}
			log.Log(ctx, level, "event will be retried", pgtx.LogDelay, s.Delay.Milliseconds())
		}
	}
}

func logEnvelope(e events.Envelope) []any {
	return []any{
		pgtx.LogEventID, e.EventID, pgtx.LogSource, e.Source, pgtx.LogTarget, e.Target,
		pgtx.LogWorkspaceID, pgtx.WorkspaceText(e.WorkspaceID),
	}
}
