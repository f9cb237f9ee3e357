package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// connections serve the entries of a process and its heartbeats. They are not those of the dispatching transactions,
// which wait for entries while they hold their own.
const connections = 2

// Journal is the registration of one worker, and where it writes its claims. Safe for concurrent use.
type Journal struct {
	Worker     uuid.UUID // this process among the live ones; a new one for each start
	Generation events.Generation
	Name       string // for people
	CrashSlot  CrashSlot

	pool     *pgxpool.Pool
	direct   bool            // its sessions have the worker role: one statement needs no transaction
	handlers json.RawMessage // by event type
	effects  json.RawMessage // what handlers do outside their transaction
	// registered: without a session whose end other workers see, an entry would tell them that this worker is dead
	registered atomic.Bool
	outageOver atomic.Pointer[time.Time] // when the others have reconnected, if they lost their sessions with ours
}

// Open returns the journal of a worker, with its own connections to where pool leads.
func Open(pool *pgxpool.Pool, worker uuid.UUID, generation events.Generation, name string) (*Journal, error) {
	config := pool.Config()
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConns = connections
	// a statement that takes too long is given up with its connection: leases run out while it is waited for
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	direct := pgtx.SetSessionRole(config.ConnConfig, pgtx.WorkerRole)
	own, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &Journal{Worker: worker, Generation: generation, Name: name, pool: own, direct: direct}, nil
}

// Close closes the journal's connections.
func (j *Journal) Close() { pgtx.ClosePool(j.pool) }

// SetHandlers says which handlers the worker runs for each event type. Call it before Register.
func (j *Journal) SetHandlers(byType map[string][]events.Registration) {
	names := make(map[string][]string, len(byType))
	effects := make(map[string]effect)
	for eventType, handlers := range byType {
		for _, r := range handlers {
			names[eventType] = append(names[eventType], r.Name)
			if r.OnReplay != "" {
				effects[r.Name] = effect{r.ActsOutside, r.OnReplay}
			}
		}
		slices.Sort(names[eventType])
	}
	j.handlers, _ = json.Marshal(names) // strings always encode
	j.effects, _ = json.Marshal(effects)
}

// effect is what a handler does outside its transaction, and what a replay does with it.
type effect struct {
	Effect   string              `json:"effect,omitempty"`
	OnReplay events.ReplayPolicy `json:"on_replay"`
}

// InTx runs work as the worker role on the journal's own connections, within StatementTimeout.
func (j *Journal) InTx(ctx context.Context, work func(context.Context, *pgtx.Tx) error) error {
	return pgtx.InTx(ctx, j.pool, pgtx.WorkerRole, work)
}

// Register makes the session of conn the one whose end tells other workers that this one is gone. It must not be a
// pooler's. It refuses, with a [*HandlersDifferError], beside a live worker of this generation that has other handlers.
func (j *Journal) Register(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := pgtx.WithAnswer(ctx, pgtx.StatementTimeout)
	defer cancel()
	difference, err := coredb.New(conn).RegisterWorker(ctx, coredb.RegisterWorkerParams{
		Worker: j.Worker, Generation: int64(j.Generation), Name: j.Name, Handlers: j.handlers, Effects: j.effects,
	})
	if err != nil {
		return fmt.Errorf("register as a worker: %w", err)
	}
	if err := j.refuse(difference); err != nil {
		return err
	}
	if j.registered.Swap(true) {
		over := time.Now().Add(pgtx.OutageGrace)
		j.outageOver.Store(&over)
	}
	return nil
}

// CheckHandlers refuses what Register refuses, on any connection.
func (j *Journal) CheckHandlers(ctx context.Context, queries *coredb.Queries) error {
	difference, err := queries.WorkerDifference(ctx, coredb.WorkerDifferenceParams{
		Worker: j.Worker, Generation: int64(j.Generation), Handlers: j.handlers,
	})
	if err != nil {
		return fmt.Errorf("look for workers with other handlers: %w", err)
	}
	return j.refuse(difference)
}

func (j *Journal) refuse(difference string) error {
	if difference == "" {
		return nil
	}
	return &HandlersDifferError{Generation: j.Generation, Difference: difference}
}

// DeadGrace returns how long another worker must be without its session before it counts as dead.
func (j *Journal) DeadGrace() time.Duration {
	if over := j.outageOver.Load(); over != nil && time.Now().Before(*over) {
		return pgtx.OutageGrace
	}
	return pgtx.DeadGrace
}

// Stopping records that this worker was told to stop, so that nothing is charged for what it may leave behind. It tries
// until that is done or ctx is. Nothing else needs to succeed in a stop.
func (j *Journal) Stopping(ctx context.Context) {
	for ctx.Err() == nil && j.InTx(ctx, func(ctx context.Context, tx *pgtx.Tx) error {
		return coredb.New(tx).WorkerStopping(ctx, coredb.WorkerStoppingParams{
			Worker: j.Worker, Generation: int64(j.Generation), Name: j.Name,
		})
	}) != nil {
		pgtx.Pause(ctx, pgtx.StoppingPause, nil)
	}
}

// Unregister says, on the connection that registered, that this worker has ended. If the connection or the answer is
// lost, the others find out by themselves.
func (j *Journal) Unregister(ctx context.Context, conn *pgx.Conn, channels []string) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.UnregisterTimeout)
	defer cancel()
	_ = coredb.New(conn).UnregisterWorker(ctx, coredb.UnregisterWorkerParams{Worker: j.Worker, Channels: channels})
}

// HandlersDifferError refuses a worker beside a live one of its generation that has other handlers for an event type:
// each would settle events that the handlers of the other have not seen.
type HandlersDifferError struct {
	Generation events.Generation
	Difference string
}

func (e *HandlersDifferError) Error() string {
	return fmt.Sprintf("generation %d: %s; a changed set of handlers needs a new generation: deploy it under a higher "+
		"SPECTRAL_GENERATION, or stop the other workers first", e.Generation, e.Difference)
}

// ErrWrite is the failure to write an entry. No handler has run then.
var ErrWrite = errors.New("write the claim to core.claim_journal")

// Entry is the journal entry of one runner, which alone uses it.
type Entry struct {
	journal   *Journal
	eventType string
	runner    int
	Stale     bool // it may name rows that this process does not hold any more, so that it has to be cleared
}

// NewEntry returns the entry of the n-th runner of an event type's consumer.
func (j *Journal) NewEntry(eventType string, n int) *Entry {
	return &Entry{journal: j, eventType: eventType, runner: n}
}

// Write replaces the rows of the entry, and which handlers that act outside their transaction have begun with its row.
// Its error is an ErrWrite.
func (e *Entry) Write(ctx context.Context, ids []uuid.UUID, begun ...string) error {
	if !e.journal.registered.Load() {
		return nil
	}
	e.Stale = true
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	write := func(ctx context.Context, db coredb.DBTX) error {
		return coredb.New(db).WriteJournal(ctx, coredb.WriteJournalParams{
			Worker: e.journal.Worker, EventType: e.eventType, Runner: int32(e.runner), Ids: ids, //nolint:gosec // few runners
			Started: append([]string{}, begun...), // not null
		})
	}
	var err error
	if e.journal.direct { // one round trip instead of three
		err = write(ctx, e.journal.pool)
	} else {
		err = e.journal.InTx(ctx, func(ctx context.Context, tx *pgtx.Tx) error { return write(ctx, tx) })
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return nil
}

// Clear removes the rows of a stale entry. Its error is an ErrWrite.
func (e *Entry) Clear(ctx context.Context) error {
	if !e.Stale {
		return nil
	}
	if err := e.Write(ctx, []uuid.UUID{}); err != nil {
		return err
	}
	e.Stale = false
	return nil
}

// CrashSlot is held while a row with crashes runs: a process runs one of them at a time, so that a crash is charged
// to that row. Nothing waits for the slot. The zero value is ready.
type CrashSlot struct {
	mu      sync.Mutex
	held    bool
	waiting map[string]func() // by event type
}

// TryTake reports whether the consumer of an event type has the slot now. If not, wake is called once the slot is free.
func (s *CrashSlot) TryTake(eventType string, wake func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		s.held = true
		return true
	}
	if s.waiting == nil {
		s.waiting = make(map[string]func())
	}
	s.waiting[eventType] = wake
	return false
}

// Release frees the slot and wakes the consumers that tried to take it.
func (s *CrashSlot) Release() {
	s.mu.Lock()
	s.held = false
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}
