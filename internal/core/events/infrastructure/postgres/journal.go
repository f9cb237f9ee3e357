package postgres

import (
	"context"
	"encoding/json"
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
)

// journalConnections serve the notes of a process and its heartbeats, which are short, apart from the
// dispatching transactions: those wait for notes while they hold theirs.
const journalConnections = 2

// journal writes down which rows this process holds before their handlers run, so that others can recover them after its
// death: core.claim_journal.
type journal struct {
	pool       *pgxpool.Pool
	worker     uuid.UUID
	generation events.Generation
	name       string
	handlers   json.RawMessage // see handlerNames; set before enroll
	// registered: until the process has a session whose end others can see, an entry would tell them that it is dead
	registered atomic.Bool
	outageOver time.Time // when others have their sessions back, if they lost them with ours; the doorbell's
	turn       turn
}

// newJournal opens a pool like the dispatching one.
func newJournal(of Config) (*journal, error) {
	config := of.Pool.Config()
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConns = journalConnections
	// a statement that takes too long is given up with its connection, and not waited for: leases run out
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &journal{pool: pool, worker: of.Worker, generation: of.Generation, name: of.Name}, nil
}

// turn is held while a row with crashes runs: if this process dies, that row is charged. Nothing waits for it.
type turn struct {
	mu      sync.Mutex
	held    bool
	waiting map[*consumer]func() // to be called when it is given back
}

// take reports whether the caller has the turn now. If not, wake is called once it may try again.
func (t *turn) take(c *consumer, wake func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		t.held = true
		return true
	}
	if t.waiting == nil {
		t.waiting = make(map[*consumer]func())
	}
	t.waiting[c] = wake
	return false
}

func (t *turn) giveBack() {
	t.mu.Lock()
	t.held = false
	waiting := t.waiting
	t.waiting = nil
	t.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}

// entry is one runner's place in the journal. Used by that runner alone.
type entry struct {
	journal   *journal
	eventType string
	runner    int
	standing  bool // it names rows that this process may have let go of
}

// write notes rows as held, in place of the earlier ones.
func (e *entry) write(ctx context.Context, rows []claimed) error {
	if !e.journal.registered.Load() {
		return nil
	}
	ids := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		ids[i] = row.envelope.EventID
	}
	e.standing = true
	err := inTx(ctx, e.journal.pool, workerRole, func(tx pgx.Tx) error {
		return coredb.New(tx).WriteJournal(ctx, coredb.WriteJournalParams{
			Worker: e.journal.worker, EventType: e.eventType, Runner: int32(e.runner), Ids: ids,
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

// clear notes that nothing is held.
func (e *entry) clear(ctx context.Context) error {
	if !e.standing {
		return nil
	}
	if err := e.write(ctx, nil); err != nil {
		return err
	}
	e.standing = false
	return nil
}

// settled says that the noted rows are committed as settled or re-pended, so that the note is void.
func (e *entry) settled() { e.standing = false }

// enroll makes the session of conn, which must be the worker's own and no pooler's, the one whose
// end tells others that this worker is gone. It refuses, with a [*HandlersDifferError], beside a live worker
// that handles an event type of this generation by other handlers.
func (j *journal) enroll(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	ctx, cancel := withAnswer(ctx, statementTimeout)
	defer cancel()
	difference, err := coredb.New(conn).RegisterWorker(ctx, coredb.RegisterWorkerParams{
		Worker: j.worker, Generation: int64(j.generation), Name: j.name, Handlers: j.handlers,
	})
	if err != nil {
		return fmt.Errorf("register as a worker: %w", err)
	}
	if err := j.refuse(difference); err != nil {
		return err
	}
	if j.registered.Swap(true) {
		j.outageOver = now.Add(outageGrace)
	}
	return nil
}

// differs looks through any connection for what enroll refuses.
func (j *journal) differs(ctx context.Context, queries *coredb.Queries) error {
	difference, err := queries.WorkerDifference(ctx, coredb.WorkerDifferenceParams{
		Worker: j.worker, Generation: int64(j.generation), Handlers: j.handlers,
	})
	if err != nil {
		return fmt.Errorf("look for workers with other handlers: %w", err)
	}
	return j.refuse(difference)
}

func (j *journal) refuse(difference string) error {
	if difference == "" {
		return nil
	}
	return &HandlersDifferError{Generation: j.generation, Difference: difference}
}

// leave says on the connection that registered that this worker has ended in good order. If that is lost, or the answer,
// others find out by themselves.
func (j *journal) leave(ctx context.Context, l *line, channels []string) {
	defer ClosePool(j.pool)
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	_ = l.queries.LeaveWorker(ctx, coredb.LeaveWorkerParams{Worker: j.worker, Channels: channels})
	l.hangUp()
}

// HandlersDifferError refuses a worker beside a live one of its generation that handles an event
// type by other handlers: each would settle events that the other's handlers have not seen.
type HandlersDifferError struct {
	Generation events.Generation
	Difference string
}

func (e *HandlersDifferError) Error() string {
	return fmt.Sprintf("generation %d: %s: a changed set of handlers is a new generation, deploy it under a higher SPECTRAL_GENERATION (or stop the other workers first)",
		e.Generation, e.Difference)
}

// handlerNames are the handlers of each event type in JSON, in the order that registration compares.
func handlerNames(consumers map[string]*consumer) json.RawMessage {
	names := make(map[string][]string, len(consumers))
	for eventType, c := range consumers {
		for _, r := range c.handlers {
			names[eventType] = append(names[eventType], r.Name)
		}
		slices.Sort(names[eventType])
	}
	encoded, _ := json.Marshal(names) // strings
	return encoded
}

// Bounds of saying that nothing is held any more: of one claim, and of all; the latter also of an answer at a stop.
const (
	clearTimeout = 2 * time.Second
	leaveTimeout = 2 * time.Second
)
