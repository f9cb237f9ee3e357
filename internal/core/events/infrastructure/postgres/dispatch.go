package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// statementTimeout bounds each of the adapter's own statements: one stalled query must not hang a
// consumer or the doorbell for good.
const statementTimeout = 10 * time.Second

// claimed is a row of core.outbox in this worker's hands.
type claimed struct {
	envelope     events.Envelope
	contentClass string
	attempts     int       // before this dispatch
	availableAt  time.Time // row-locked: tells this dispatch of the row from any later one
	token        uuid.UUID // leased: the same
	record       map[string]handlerFailure
	corrupt      error // why record could not be read
	crashes      int   // workers that died while they held it
}

// batchable rows have done no harm so far.
func (c *consumer) batchable(row claimed) bool {
	return len(row.record) == 0 && row.corrupt == nil && len(c.handlersOf(row.envelope)) > 0
}

// dispatchResult says what one claim came to.
type dispatchResult struct {
	rows     int  // claimed
	payload  int  // bytes of them
	left     int  // of them, to be run one at a time
	strict   bool // and with each handler's deferred constraints checked by themselves
	undone   bool // a batch was rolled back
	deadlock bool // because of a deadlock
	lost     bool // the connection went: its backend may hold the rows a little longer
	settled  []Settlement
}

// dispatch claims up to limit rows in one transaction, runs their handlers and settles them. What
// the claim brings along beside a batch, or cannot be batched, is left for later claims of one row. Strict
// checks deferred constraints handler by handler. Ctx ends the handlers. After an error the rows
// are as they were, or the answer to a commit was lost; no attempt is counted.
func (c *consumer) dispatch(ctx context.Context, note *entry, how claim) (result dispatchResult, err error) {
	if err := note.clear(ctx); err != nil {
		return dispatchResult{}, err
	}
	d := &dispatchTx{consumer: c, note: note, strict: how.strict}
	if err := d.begin(ctx); err != nil {
		return dispatchResult{}, err
	}
	defer d.end()
	if err := d.measure(ctx); err != nil {
		return dispatchResult{}, err
	}
	rows, err := d.claim(ctx, how)
	if err != nil || len(rows) == 0 {
		return dispatchResult{}, err
	}
	result.rows = len(rows)
	var batch []claimed
	for _, row := range rows {
		result.payload += len(row.envelope.Payload)
		if c.batchable(row) {
			batch = append(batch, row)
		}
	}
	if len(batch) > 1 {
		result.left = len(rows) - len(batch)
		err = d.batch(ctx, batch, &result)
	} else {
		result.left = len(rows) - 1
		err = d.single(ctx, rows[0], &result)
	}
	result.settled = d.settled
	return result, err
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

// dispatchTx is one transaction of a consumer.
type dispatchTx struct {
	*consumer
	note    *entry // nil where nothing is claimed
	noted   chan error
	strict  bool
	conn    *pgxpool.Conn // nil once it is left to an abandoned handler
	tx      pgx.Tx
	queries *coredb.Queries
	shared  bool          // by several events: session state is refused
	spoiled bool          // a handler, not the network, made the connection unusable
	dirty   bool          // a handler has left session state: the connection is closed at the end
	left    statementKind // what the last handler has left in the transaction
	settled []Settlement
}

func (d *dispatchTx) begin(ctx context.Context) (err error) {
	if d.conn, err = acquire(ctx, d.pool); err != nil {
		return err
	}
	if d.tx, err = beginAs(ctx, d.pool, d.conn, actor{role: workerRole, idle: d.idleTimeout()}); err != nil {
		d.conn.Release()
		d.conn = nil
		return err
	}
	d.queries = coredb.New(d.tx)
	return nil
}

// end rolls back what is not committed and gives the connection back. The note goes first: rows
// that are free again and noted look like a dead worker's, should the session be lost now.
func (d *dispatchTx) end() {
	_ = d.awaitNote() // whatever came of it, it goes now
	if d.note != nil {
		ctx, cancel := context.WithTimeout(context.Background(), clearTimeout)
		_ = d.note.clear(ctx) // if not, then before the next claim
		cancel()
	}
	if d.conn == nil {
		return
	}
	rollback(d.tx)
	if d.dirty {
		closeBeforeRelease(d.conn)
	}
	d.conn.Release()
	d.conn = nil
}

// closeBeforeRelease keeps a connection from being used again.
func closeBeforeRelease(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = conn.Conn().Close(ctx)
}

// lost reports whether the transaction cannot go on.
func (d *dispatchTx) lost() bool { return d.conn == nil || d.conn.Conn().IsClosed() }

// cut gives up a connection that a handler left in a state from which the transaction can neither
// go on nor be undone, or that a goroutine of the handler's may still be using: the socket is
// closed, which is safe beside a running query, and nothing else touched. What the backend is
// doing is cancelled first, so that the row's lock goes.
func (d *dispatchTx) cut() {
	conn := d.conn.Hijack()
	d.conn, d.spoiled = nil, true
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = conn.PgConn().CancelRequest(ctx)
	_ = conn.PgConn().Conn().Close()
}

// exec runs one of the dispatcher's own statements.
func (d *dispatchTx) exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	_, err := d.tx.Exec(ctx, sql)
	return err
}

func (d *dispatchTx) claim(ctx context.Context, how claim) ([]claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := d.queries.Claim(ctx, coredb.ClaimParams{
		Generation: int64(d.generation), EventType: d.subscription.EventType, RowLimit: int32(how.limit),
		Floor: d.floor.get(), Worker: d.journal.worker, Crashed: how.crashed,
	})
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", d.subscription.EventType, err)
	}
	result := make([]claimed, len(rows))
	for i, r := range rows {
		result[i] = claimedRow(r)
	}
	return result, nil
}

func claimedRow(r coredb.ClaimRow) claimed {
	row := claimed{
		envelope: events.Envelope{
			EventID: r.EventID, EventType: r.EventType, EventVersion: int(r.EventVersion), OccurredAt: r.OccurredAt,
			Source: events.Scope(r.Source), Target: events.Scope(r.Target),
			WorkspaceID: uuid.NullUUID{UUID: r.WorkspaceID, Valid: r.WorkspaceID != uuid.Nil},
			Payload:     json.RawMessage(r.Payload), IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext,
		},
		contentClass: r.ContentClass, attempts: int(r.Attempts), availableAt: r.AvailableAt, crashes: int(r.Crashes),
	}
	if err := json.Unmarshal([]byte(r.HandlerFailures), &row.record); err != nil {
		row.record, row.corrupt = nil, fmt.Errorf("column handler_failures of this row: %w", err)
	}
	return row
}

// measure lets the floor rise, now and then. First in the transaction: a mark needs its id.
func (d *dispatchTx) measure(ctx context.Context) error {
	if !d.floor.stale() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	used := d.floor.get()
	m, err := d.queries.Floor(ctx, coredb.FloorParams{
		Generation: int64(d.generation), EventType: d.subscription.EventType, Floor: used,
	})
	if err != nil {
		return fmt.Errorf("measure the floor of %s: %w", d.subscription.EventType, err)
	}
	d.floor.rise(used, m)
	return nil
}

// noteDown begins to write rows into the journal; no handler is called before that is done.
func (d *dispatchTx) noteDown(ctx context.Context, rows []claimed) {
	d.noted = make(chan error, 1)
	go func() { d.noted <- d.note.write(ctx, rows) }()
}

// awaitNote waits for the note.
func (d *dispatchTx) awaitNote() error {
	if d.noted == nil {
		return nil
	}
	err := <-d.noted
	d.noted = nil
	return err
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

// call runs a handler as its context's role for rows of one workspace.
func (d *dispatchTx) call(ctx context.Context, r events.Registration, batch []events.Envelope) error {
	if err := d.awaitNote(); err != nil {
		return err
	}
	role, err := scopeRole(r.Scope())
	if err != nil {
		return err
	}
	if err := d.act(ctx, role, batch[0].WorkspaceID); err != nil {
		return fmt.Errorf("act as %s: %w", role, err)
	}
	err = d.withHandlerTx(ctx, r.CallTimeout(), func(ctx context.Context, tx *handlerTx) error {
		if r.Batch != nil {
			return late(ctx, r.CallTimeout(), r.Batch(tx).HandleBatch(ctx, batch))
		}
		handle := r.Handler(tx)
		for _, e := range batch {
			if err := handle(ctx, e); err != nil {
				return late(ctx, r.CallTimeout(), err)
			}
		}
		return nil
	})
	d.logPanic(ctx, r, batch, err)
	return err
}

// act takes on a role for what runs next. After a handler that left session state it sets the transaction's own
// settings again: what the handler set must not decide how its row is settled.
func (d *dispatchTx) act(ctx context.Context, role string, workspace uuid.NullUUID) error {
	sql := actAs(role, workspace)
	if d.left == plain {
		return d.exec(ctx, sql)
	}
	own := ownSettings(d.conn.Conn().PgConn(), d.idleTimeout()) + "set local client_encoding = 'UTF8'; "
	if err := d.exec(ctx, own+sql); err != nil {
		return err
	}
	return d.prepareAgain(ctx)
}

// withHandlerTx runs a handler's code on the transaction, whose role and workspace are set.
func (d *dispatchTx) withHandlerTx(
	ctx context.Context, timeout time.Duration, use func(context.Context, *handlerTx) error,
) error {
	h := &handlerTx{tx: d.tx, shared: d.shared}
	err := runGuarded(ctx, timeout, func(ctx context.Context) error { return use(ctx, h) })
	inUse := h.revoke()
	if d.left = h.state; d.left == sessionState && !d.shared {
		d.dirty = true
	}
	if errors.Is(err, errAbandoned) {
		d.cut()
	} else if inUse {
		d.cut()
		return errors.Join(err, errTxInUse)
	}
	if !d.lost() && d.conn.Conn().PgConn().TxStatus() == 'I' {
		d.cut() // what it did is committed or undone, and nothing after it may run
		if errors.Is(err, errTxEnded) {
			return err
		}
		return errors.Join(err, errTxEnded)
	}
	if err == nil && d.shared && d.left != plain { // it was refused, and the handler went on
		return errSessionState
	}
	return err
}

// prepareAgain makes the driver forget its prepared statements if a handler may have deallocated them, which no
// savepoint undoes.
func (d *dispatchTx) prepareAgain(ctx context.Context) error {
	if d.left != sessionState {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return d.conn.Conn().DeallocateAll(ctx)
}

// deliver settles rows as delivered.
func (d *dispatchTx) deliver(ctx context.Context, rows []claimed) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	ids, times := namesOf(rows)
	settled, err := d.queries.Deliver(ctx, coredb.DeliverParams{Ids: ids, OccurredAts: times})
	if err != nil {
		return fmt.Errorf("settle as delivered: %w", err)
	}
	if int(settled) != len(rows) {
		return fmt.Errorf("settle as delivered: %d of %d rows were still ours", settled, len(rows))
	}
	for _, row := range rows {
		d.settled = append(d.settled, Settlement{Envelope: row.envelope, Outcome: Delivered, Attempts: row.attempts + 1})
	}
	return nil
}

// namesOf is what names rows to the functions of the database.
func namesOf(rows []claimed) (ids []uuid.UUID, occurredAts []time.Time) {
	ids, occurredAts = make([]uuid.UUID, len(rows)), make([]time.Time, len(rows))
	for i, row := range rows {
		ids[i], occurredAts[i] = row.envelope.EventID, row.envelope.OccurredAt
	}
	return ids, occurredAts
}

// record writes a verdict on a row, unless somebody else has it by now.
func (d *dispatchTx) record(ctx context.Context, row claimed, v verdict) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	encoded, err := json.Marshal(v.failures)
	if err != nil {
		return fmt.Errorf("encode handler_failures: %w", err)
	}
	var ours bool
	if v.failed {
		ours, err = d.queries.Fail(ctx, coredb.FailParams{
			ID: row.envelope.EventID, OccurredAt: row.envelope.OccurredAt, AvailableAt: row.availableAt,
			LastError: v.lastError, HandlerFailures: encoded,
		})
	} else {
		ours, err = d.queries.Retry(ctx, coredb.RetryParams{
			ID: row.envelope.EventID, OccurredAt: row.envelope.OccurredAt, AvailableAt: row.availableAt,
			DelaySeconds: v.delay.Seconds(), LastError: v.lastError, HandlerFailures: encoded, Counted: v.counted,
		})
	}
	if err != nil {
		return fmt.Errorf("record the failure of %s: %w", row.envelope.EventID, err)
	}
	if !ours {
		d.log.WarnContext(ctx, "a failure was not recorded: another worker has taken the event up since",
			logEventID, row.envelope.EventID, logEventType, row.envelope.EventType)
		return nil
	}
	d.settled = append(d.settled, v.settlement(row))
	return nil
}

// commit ends the transaction; what it noted as settled is void if that fails.
func (d *dispatchTx) commit(ctx context.Context) error {
	if err := d.awaitNote(); err != nil { // no handler was called
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := d.tx.Commit(ctx); err != nil {
		d.settled = nil
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	if d.note != nil {
		d.note.settled()
	}
	return nil
}
