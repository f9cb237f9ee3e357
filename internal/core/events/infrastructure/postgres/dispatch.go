package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// statementTimeout bounds each of the dispatcher's own statements: one stalled query must not hang
// a consumer for good.
const statementTimeout = 10 * time.Second

// claimed is a row of core.outbox in this worker's hands.
type claimed struct {
	envelope     events.Envelope
	contentClass string
	attempts     int32
	record       map[string]handlerFailure
}

// dispatchResult says what one claim came to.
type dispatchResult struct {
	rows    int  // claimed
	undone  bool // the transaction was rolled back: its rows are to be run one at a time
	strict  bool // and with each handler's deferred constraints checked by themselves
	settled []Settlement
}

// dispatch claims up to limit rows in one transaction, runs their handlers and settles them.
// Strict checks deferred constraints handler by handler. Ctx ends the handlers. An error means that nothing was settled and the infrastructure is at
// fault, or that shutdown came first; it costs no row an attempt.
func (c *consumer) dispatch(ctx context.Context, limit int, strict bool) (dispatchResult, error) {
	conn, err := acquire(ctx, c.pool)
	if err != nil {
		return dispatchResult{}, err
	}
	d := &dispatch{consumer: c, conn: conn, strict: strict}
	defer d.release()

	begin, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if d.tx, err = beginAs(begin, conn, workerRole, noWorkspace); err != nil {
		return dispatchResult{}, fmt.Errorf("begin as %s: %w", workerRole, err)
	}
	d.queries = coredb.New(d.tx)
	rows, err := d.claim(begin, limit)
	if err != nil || len(rows) == 0 {
		return dispatchResult{}, err
	}
	if len(rows) == 1 {
		again, err := d.single(ctx, rows[0])
		return dispatchResult{rows: 1, undone: again, strict: again, settled: d.settled}, err
	}
	return d.batch(ctx, rows)
}

// acquire takes a connection in bounded time: handlers that want a second one of their own may
// have emptied the pool.
func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a connection from the pool: %w", err)
	}
	return conn, nil
}

// dispatch is one transaction of a consumer.
type dispatch struct {
	*consumer
	conn    *pgxpool.Conn
	tx      pgx.Tx
	queries *coredb.Queries
	strict  bool
	spoiled bool // a handler, not the network, made the connection unusable
	settled []Settlement
}

// release rolls back what is not committed and gives the connection back.
func (d *dispatch) release() {
	if d.conn == nil {
		return // left to an abandoned handler
	}
	if d.tx != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		_ = d.tx.Rollback(ctx)
	}
	d.conn.Release()
}

// abandon cuts the connection of a handler that does not return, and leaves closing it to that
// handler's goroutine, which may be using it.
func (d *dispatch) abandon(returned <-chan struct{}) {
	conn := d.conn.Hijack()
	d.conn, d.spoiled = nil, true
	_ = conn.PgConn().Conn().Close() // the socket: safe beside a running query
	go func() {
		<-returned
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
}

func (d *dispatch) claim(ctx context.Context, limit int) ([]claimed, error) {
	rows, err := d.queries.Claim(ctx, coredb.ClaimParams{
		Generation: int64(d.generation), EventType: d.subscription.EventType, RowLimit: int32(limit),
	})
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", d.subscription.EventType, err)
	}
	result := make([]claimed, len(rows))
	for i, r := range rows {
		result[i] = claimed{
			envelope: events.Envelope{
				EventID: r.EventID, EventType: r.EventType, EventVersion: int(r.EventVersion), OccurredAt: r.OccurredAt,
				Source: events.Scope(r.Source), Target: events.Scope(r.Target),
				WorkspaceID: uuid.NullUUID{UUID: r.WorkspaceID, Valid: r.WorkspaceID != uuid.Nil},
				Payload:     r.Payload, IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext,
			},
			contentClass: r.ContentClass, attempts: r.Attempts,
		}
		if err := json.Unmarshal(r.HandlerFailures, &result[i].record); err != nil {
			return nil, fmt.Errorf("read handler_failures of %s: %w", r.EventID, err)
		}
	}
	return result, nil
}

// handlersOf are the handlers that an envelope is meant for.
func (c *consumer) handlersOf(e events.Envelope) []events.Registration {
	if e.Target == "" {
		return c.handlers
	}
	var meant []events.Registration
	for _, r := range c.handlers {
		if r.Scope() == e.Target {
			meant = append(meant, r)
		}
	}
	return meant
}

// single runs the handlers of one row, each under a savepoint of its own: those that succeed
// commit with their dedup rows, whatever becomes of the others. Again means that COMMIT found a
// deferred constraint broken, which undid them all: the row is to be run again, strictly.
func (d *dispatch) single(ctx context.Context, row claimed) (again bool, err error) {
	handlers := d.handlersOf(row.envelope)
	if len(handlers) == 0 {
		return false, d.settle(ctx, row, nil, map[string]failure{string(row.envelope.Target): classify(events.ErrNoHandler, 0)})
	}
	failures := make(map[string]failure)
	var unhandled, ran []events.Registration
	for _, r := range handlers {
		if row.record[r.Name].Parked {
			unhandled = append(unhandled, r)
			continue
		}
		started := d.now()
		err := d.underSavepoint(ctx, r, row)
		if err != nil {
			if ctx.Err() != nil {
				return false, fmt.Errorf("stopped while %s ran: %w", r.Name, ctx.Err())
			}
			failures[r.Name] = classify(err, row.record[r.Name].Failures)
			unhandled = append(unhandled, r)
		}
		d.logHandled(ctx, r, row, started, failures)
		if d.spoiled {
			return false, d.recordElsewhere(ctx, row, handlers, failures)
		}
		if d.lost() {
			return false, fmt.Errorf("connection lost while %s ran: %w", r.Name, err)
		}
		if err == nil {
			ran = append(ran, r)
		}
	}
	err = d.settle(ctx, row, unhandled, failures)
	var refused *commitError
	var pg *pgconn.PgError
	if !errors.As(err, &refused) || !errors.As(err, &pg) || len(ran) == 0 {
		return false, err
	}
	if !d.strict {
		return true, nil
	}
	// something only COMMIT finds, and which of them did it cannot be told
	for _, r := range ran {
		failures[r.Name] = classify(pg, row.record[r.Name].Failures)
	}
	return false, d.recordElsewhere(ctx, row, handlers, failures)
}

// lost reports whether the transaction cannot go on.
func (d *dispatch) lost() bool { return d.conn == nil || d.conn.Conn().IsClosed() }

// exec runs one of the dispatcher's own statements in bounded time.
func (d *dispatch) exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	_, err := d.tx.Exec(ctx, sql)
	return err
}

// underSavepoint runs one handler for one row, unless somebody else has its key.
func (d *dispatch) underSavepoint(ctx context.Context, r events.Registration, row claimed) error {
	if err := d.exec(ctx, "savepoint handler"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	err := func() error {
		e := row.envelope
		// a twin holds the key for as long as its own handler takes
		wait, cancel := context.WithTimeout(ctx, r.CallTimeout()+statementTimeout)
		defer cancel()
		_, err := d.queries.ClaimKey(wait, coredb.ClaimKeyParams{
			HandlerName: r.Name, IdempotencyKey: e.IdempotencyKey, EventID: e.EventID, EventType: e.EventType,
			WorkspaceID: e.WorkspaceID, ContentClass: row.contentClass,
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // handled already, or by a twin: concede
		}
		if err != nil {
			return fmt.Errorf("claim the dedup key: %w", err)
		}
		if err := d.call(ctx, r, []events.Envelope{e}); err != nil {
			return err
		}
		// fails when the handler has swallowed an error of its SQL and so lost its transaction
		if err := d.exec(ctx, actAs(workerRole, noWorkspace)); err != nil {
			return fmt.Errorf("handler returned nil but left its transaction unusable: %w", err)
		}
		if d.strict {
			return d.exec(ctx, "set constraints all immediate; set constraints all deferred")
		}
		return nil
	}()
	if d.lost() {
		return err
	}
	if err == nil {
		if err = d.exec(ctx, "release savepoint handler"); err == nil {
			return nil
		}
	}
	// also restores the role and the workspace, and gives the key back
	if undo := d.exec(ctx, "rollback to savepoint handler; release savepoint handler"); undo != nil && !d.lost() {
		d.cut()
	}
	return err
}

// cut closes a connection whose transaction can neither go on nor be undone to a savepoint.
func (d *dispatch) cut() {
	d.spoiled = true
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = d.conn.Conn().Close(ctx)
}

// call runs a handler as its context's role for rows of one workspace.
func (d *dispatch) call(ctx context.Context, r events.Registration, batch []events.Envelope) error {
	role, err := scopeRole(r.Scope())
	if err != nil {
		return err
	}
	if err := d.exec(ctx, actAs(role, batch[0].WorkspaceID)); err != nil {
		return fmt.Errorf("act as %s: %w", role, err)
	}
	lent := &lentTx{tx: d.tx}
	returned, err := runGuarded(ctx, r.CallTimeout(), func(ctx context.Context) error {
		defer lent.takeBack()
		if r.Batch != nil {
			return r.Batch(lent).HandleBatch(ctx, batch)
		}
		handle := r.Handler(lent)
		for _, e := range batch {
			if err := handle(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errAbandoned) {
		d.abandon(returned)
	}
	return err
}

// settle writes what became of a row and commits.
func (d *dispatch) settle(ctx context.Context, row claimed, unhandled []events.Registration, failures map[string]failure) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if len(unhandled) == 0 && len(failures) == 0 {
		if err := d.deliver(ctx, []claimed{row}); err != nil {
			return err
		}
	} else if err := d.record(ctx, row, judge(row.record, unhandled, failures, d.random)); err != nil {
		return err
	}
	return d.commit(ctx)
}

// commit ends the transaction, and with it takes back what it noted as settled if it fails.
func (d *dispatch) commit(ctx context.Context) error {
	if err := d.tx.Commit(ctx); err != nil {
		d.settled = nil
		return &commitError{err}
	}
	return nil
}

// commitError is an error of COMMIT itself: a deferred constraint of a handler, or a lost answer.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

func (d *dispatch) deliver(ctx context.Context, rows []claimed) error {
	ids, times := make([]uuid.UUID, len(rows)), make([]time.Time, len(rows))
	for i, row := range rows {
		ids[i], times[i] = row.envelope.EventID, row.envelope.OccurredAt
	}
	settled, err := d.queries.Deliver(ctx, coredb.DeliverParams{Ids: ids, OccurredAts: times})
	if err != nil {
		return fmt.Errorf("settle as delivered: %w", err)
	}
	if int(settled) != len(rows) {
		return fmt.Errorf("settle as delivered: %d of %d rows were still ours", settled, len(rows))
	}
	for _, row := range rows {
		d.settled = append(d.settled, Settlement{Envelope: row.envelope, Status: Delivered, Attempts: int(row.attempts) + 1})
	}
	return nil
}

// record writes a verdict on a row.
func (d *dispatch) record(ctx context.Context, row claimed, v verdict) error {
	encoded, err := json.Marshal(v.failures)
	if err != nil {
		return fmt.Errorf("encode handler_failures: %w", err)
	}
	var settled bool
	if v.failed {
		settled, err = d.queries.Fail(ctx, coredb.FailParams{
			ID: row.envelope.EventID, OccurredAt: row.envelope.OccurredAt, Attempts: row.attempts,
			LastError: v.lastError, HandlerFailures: encoded,
		})
	} else {
		settled, err = d.queries.Retry(ctx, coredb.RetryParams{
			ID: row.envelope.EventID, OccurredAt: row.envelope.OccurredAt, Attempts: row.attempts,
			DelaySeconds: v.delay.Seconds(), LastError: v.lastError, HandlerFailures: encoded, Counted: v.counted,
		})
	}
	if err != nil {
		return fmt.Errorf("record the failure of %s: %w", row.envelope.EventID, err)
	}
	if settled {
		d.settled = append(d.settled, v.settlement(row))
		d.logVerdict(ctx, row, v)
	}
	return nil
}

// recordElsewhere records failures in a transaction of their own, when the one they happened in
// is lost. A row that somebody else has taken up since is left to them.
func (d *dispatch) recordElsewhere(ctx context.Context, row claimed, unhandled []events.Registration, failures map[string]failure) error {
	d.release() // the claim's locks must go first
	d.conn, d.tx = nil, nil
	conn, err := acquire(ctx, d.pool)
	if err != nil {
		return err
	}
	other := &dispatch{consumer: d.consumer, conn: conn}
	defer other.release()
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if other.tx, err = beginAs(ctx, conn, workerRole, noWorkspace); err != nil {
		return err
	}
	other.queries = coredb.New(other.tx)
	// what succeeded before was undone with the transaction: it is unhandled again, without fault
	if err := other.record(ctx, row, judge(row.record, unhandled, failures, d.random)); err != nil {
		return err
	}
	if err := other.commit(ctx); err != nil {
		return err
	}
	d.settled = other.settled
	return nil
}

// batch runs the handlers of several rows without savepoints, which cost every session once a
// transaction has many. Whatever fails undoes the batch; its rows then run one at a time.
func (d *dispatch) batch(ctx context.Context, rows []claimed) (dispatchResult, error) {
	result := dispatchResult{rows: len(rows)}
	err := d.tryBatch(ctx, rows)
	if err == nil {
		result.settled = d.settled
		return result, nil
	}
	if ctx.Err() != nil {
		return result, fmt.Errorf("stopped in a batch: %w", ctx.Err())
	}
	d.log.DebugContext(ctx, "batch undone, its rows run one at a time",
		logEventType, d.subscription.EventType, logRows, len(rows), logErrorClass, classify(err, 0).class)
	result.undone = true
	return result, nil
}

var errNotBatchable = errors.New("a row that failed before, or whose target has no handler, runs alone")

func (d *dispatch) tryBatch(ctx context.Context, rows []claimed) error {
	var keys coredb.ClaimKeysParams
	for _, row := range rows {
		handlers := d.handlersOf(row.envelope)
		if len(row.record) > 0 || len(handlers) == 0 {
			return errNotBatchable
		}
		e := row.envelope
		for _, r := range handlers {
			keys.HandlerNames = append(keys.HandlerNames, r.Name)
			keys.IdempotencyKeys = append(keys.IdempotencyKeys, e.IdempotencyKey)
			keys.EventIds = append(keys.EventIds, e.EventID)
			keys.EventTypes = append(keys.EventTypes, e.EventType)
			keys.WorkspaceIds = append(keys.WorkspaceIds, e.WorkspaceID.UUID)
			keys.ContentClasses = append(keys.ContentClasses, row.contentClass)
		}
	}
	won, err := d.queries.ClaimKeys(ctx, keys)
	if err != nil {
		return fmt.Errorf("claim dedup keys: %w", err)
	}
	ours := make(map[coredb.ClaimKeysRow]bool, len(won))
	for _, key := range won {
		ours[key] = true
	}
	started := d.now()
	for _, r := range d.handlers {
		for _, group := range byWorkspace(rows, func(e events.Envelope) bool {
			return ours[coredb.ClaimKeysRow{HandlerName: r.Name, EventID: e.EventID}]
		}) {
			if err := d.call(ctx, r, group); err != nil {
				return err
			}
		}
	}
	if err := d.exec(ctx, actAs(workerRole, noWorkspace)); err != nil {
		return fmt.Errorf("a handler returned nil but left the transaction unusable: %w", err)
	}
	if err := d.deliver(ctx, rows); err != nil {
		return err
	}
	if err := d.commit(ctx); err != nil {
		return err
	}
	for _, row := range rows {
		for _, r := range d.handlersOf(row.envelope) {
			d.logHandled(ctx, r, row, started, nil)
		}
	}
	return nil
}

// byWorkspace groups the wanted envelopes by workspace, each group and the groups in the order
// of the rows.
func byWorkspace(rows []claimed, wanted func(events.Envelope) bool) [][]events.Envelope {
	var groups [][]events.Envelope
	place := make(map[uuid.NullUUID]int)
	for _, row := range rows {
		e := row.envelope
		if !wanted(e) {
			continue
		}
		i, ok := place[e.WorkspaceID]
		if !ok {
			i = len(groups)
			place[e.WorkspaceID] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], e)
	}
	return groups
}
