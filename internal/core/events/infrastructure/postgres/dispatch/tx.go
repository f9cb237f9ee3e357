package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Tx is one transaction of a consumer. It runs as the worker role, but for what handlers do in it.
type Tx struct {
	Queries *coredb.Queries
	Settled []Settlement // what it settles, if it commits
	Shared  bool         // by several events: session state is refused

	givenBack bool // rows that it handled are pending: a claim may have passed over them while they were locked
	consumer  *Consumer
	entry     *journal.Entry // nil where it claims nothing
	writing   chan error     // the result of writing the entry, while that goes on
	conn      *pgxpool.Conn  // nil once it is given back or closed
	tx        *pgtx.Tx
	broken    bool                              // by a handler, not by the network
	dirty     bool                              // a handler left session state: the connection is closed at the end
	left      pgtx.StatementKind                // what the last handler left in the transaction
	again     map[uuid.UUID]events.DeliveryInfo // of rows that were tried or replayed before
}

// Begin begins a transaction of c as the worker role. Entry is nil where nothing is claimed.
func Begin(ctx context.Context, c *Consumer, entry *journal.Entry) (*Tx, error) {
	conn, tx, err := pgtx.Begin(ctx, c.Pool, pgtx.WorkerRole, pgtx.NoWorkspace, c.idleTimeout())
	if err != nil {
		return nil, err
	}
	return &Tx{Queries: coredb.New(tx), consumer: c, entry: entry, conn: conn, tx: tx}, nil
}

// End rolls back what is not committed and gives the connection back. It clears the journal entry first: rows that are
// free and still in the journal look like a dead worker's, should the session be lost at that moment. It may be called
// twice.
func (t *Tx) End() {
	_ = t.awaitEntry() // it is cleared now, whatever the result
	if t.entry != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pgtx.ClearJournalTimeout)
		_ = t.entry.Clear(ctx) // if that fails, the next claim begins with it
		cancel()
	}
	if t.conn == nil {
		return
	}
	t.tx.Rollback()
	if t.dirty {
		pgtx.CloseBeforeRelease(t.conn)
	}
	t.conn.Release()
	t.conn = nil
}

// Lost reports whether the transaction cannot go on.
func (t *Tx) Lost() bool { return t.conn == nil || t.conn.Conn().IsClosed() }

// LostByNetwork reports whether the transaction cannot go on, and no handler is to blame.
func (t *Tx) LostByNetwork() bool { return t.Lost() && !t.broken }

// forceClose gives up a connection from which the transaction can neither go on nor be undone, or which a goroutine of
// a handler may still use: it closes the socket only, which is safe while a query runs. It cancels the query first, so
// that the row's lock goes.
func (t *Tx) forceClose() {
	conn := t.conn.Hijack()
	t.conn, t.broken = nil, true
	ctx, cancel := context.WithTimeout(context.Background(), pgtx.RollbackTimeout)
	defer cancel()
	_ = conn.PgConn().CancelRequest(ctx)
	_ = conn.PgConn().Conn().Close()
}

// Exec runs one of the dispatcher's own statements.
func (t *Tx) Exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	_, err := t.tx.Exec(ctx, sql)
	return err
}

// SampleWatermark raises the consumer's watermark now and then. It has to come first: a sample needs the transaction's
// id.
func (t *Tx) SampleWatermark(ctx context.Context) error {
	c := t.consumer
	if !c.Watermark.due() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	used := c.Watermark.Get()
	sample, err := t.Queries.SampleWatermark(ctx, coredb.SampleWatermarkParams{
		Generation: int64(c.Journal.Generation), EventType: c.Subscription.EventType, Watermark: used,
	})
	if err != nil {
		return fmt.Errorf("raise the claim watermark of %s: %w", c.Subscription.EventType, err)
	}
	c.Watermark.raise(used, sample)
	return nil
}

// writeEntry begins to write rows into the journal, and which handlers that act outside have begun. No handler is
// called before that is done.
func (t *Tx) writeEntry(ctx context.Context, rows []Row, begun ...string) {
	t.writing = make(chan error, 1)
	ids := idsOf(rows)
	go func() { t.writing <- t.entry.Write(ctx, ids, begun...) }()
}

func (t *Tx) awaitEntry() error {
	if t.writing == nil {
		return nil
	}
	err := <-t.writing
	t.writing = nil
	return err
}

// ClaimKeys claims dedup keys, and leaves those in keys that were free.
func (t *Tx) ClaimKeys(ctx context.Context, keys *DedupKeys) error {
	if len(keys.first) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	keys.params.EventType = t.consumer.Subscription.EventType
	rows, err := t.Queries.ClaimKeys(ctx, keys.params)
	if err != nil {
		return fmt.Errorf("%w: %w", errKey, err)
	}
	if len(rows) == 1 && rows[0].HandlerName == "" { // all were free
		return nil
	}
	all := keys.first
	keys.first = make(map[dedupKey]int, len(rows))
	for _, row := range rows {
		key := dedupKey{row.HandlerName, row.IdempotencyKey}
		keys.first[key] = all[key]
	}
	return nil
}

// As sets the role and workspace for the statements that follow. After a handler that left session state it sets the
// transaction's own settings again: what the handler set must not decide how its row is settled. For the role it sends
// nothing, so it finds itself what a statement would have found: open rows, or an aborted transaction.
func (t *Tx) As(ctx context.Context, role string, workspace uuid.NullUUID) error {
	if t.left != pgtx.Plain {
		own := pgtx.OwnSettings("set local", t.conn.Conn().PgConn(), t.consumer.idleTimeout()) +
			"set local client_encoding = 'UTF8'"
		if err := t.Exec(ctx, own); err != nil {
			return err
		}
		if err := t.resetStatements(ctx); err != nil {
			return err
		}
	}
	err := t.tx.Ready(ctx)
	if err == nil {
		t.tx.Act(role, workspace)
	}
	return err
}

// AsWorker sets the worker role again, after handlers.
func (t *Tx) AsWorker(ctx context.Context) error { return t.As(ctx, pgtx.WorkerRole, pgtx.NoWorkspace) }

// resetStatements makes the driver forget its prepared statements if a handler may have deallocated them, which no
// savepoint undoes.
func (t *Tx) resetStatements(ctx context.Context) error {
	if t.left != pgtx.SessionState {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	return t.tx.Forget(ctx)
}

// callHandler runs a handler for events of one workspace.
func (t *Tx) callHandler(ctx context.Context, r events.Registration, batch []events.Envelope) error {
	return t.Call(ctx, r, r.CallTimeout(), batch, func(ctx context.Context, tx events.Tx) error {
		if r.Batch != nil {
			if len(batch) == 1 {
				ctx = events.WithDelivery(ctx, t.delivery(batch[0].EventID))
			}
			return t.consumer.Observe(ctx, r, batch, func(ctx context.Context) error {
				return r.Batch(tx).HandleBatch(ctx, batch)
			})
		}
		handle := r.Handler(tx)
		for i := range batch {
			about := events.WithDelivery(ctx, t.delivery(batch[i].EventID))
			if err := t.consumer.Observe(about, r, batch[i:i+1], func(ctx context.Context) error {
				return handle(ctx, batch[i])
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// delivery returns what a handler is told of its call.
func (t *Tx) delivery(id uuid.UUID) events.DeliveryInfo {
	if d, ok := t.again[id]; ok {
		return d
	}
	return events.DeliveryInfo{EventID: id, Attempt: 1}
}

// noteAgain notes which rows were tried or replayed before.
func (t *Tx) noteAgain(rows []Row) {
	for i := range rows {
		if d := rows[i].Delivery(); d.Attempt > 1 || d.Replay {
			if t.again == nil {
				t.again = make(map[uuid.UUID]events.DeliveryInfo)
			}
			t.again[d.EventID] = d
		}
	}
}

// Call passes the transaction to code of r for events of one workspace, as the role of its context.
func (t *Tx) Call(ctx context.Context, r events.Registration, timeout time.Duration, batch []events.Envelope,
	use func(context.Context, events.Tx) error) error {
	if err := t.awaitEntry(); err != nil {
		return err
	}
	role, err := pgtx.ContextRole(r.Scope())
	if err != nil {
		return err
	}
	if err := t.As(ctx, role, batch[0].WorkspaceID); err != nil {
		return fmt.Errorf("act as %s: %w", role, err)
	}
	err = t.withHandlerTx(ctx, timeout, use)
	t.consumer.LogPanic(ctx, r, batch, err)
	return err
}

// withHandlerTx passes the transaction, whose role and workspace are set, to a handler's code. If that does not return
// in time, uses the transaction afterwards or ends it, the connection is closed.
func (t *Tx) withHandlerTx(ctx context.Context, timeout time.Duration,
	use func(context.Context, events.Tx) error) error {
	h := pgtx.NewHandlerTx(t.tx, t.Shared)
	err := Call(ctx, timeout, func(ctx context.Context) error { return ExplainTimeout(ctx, timeout, use(ctx, h)) })
	inUse, left := h.Revoke()
	if t.left = left; left == pgtx.SessionState && !t.Shared {
		t.dirty = true
	}
	if errors.Is(err, errAbandoned) {
		t.forceClose()
	} else if inUse {
		t.forceClose()
		return errors.Join(err, pgtx.ErrTxInUse)
	}
	if !t.Lost() && t.tx.Ended() {
		t.forceClose() // what it did is committed or undone, and nothing may run after it
		if errors.Is(err, pgtx.ErrTxEnded) {
			return err
		}
		return errors.Join(err, pgtx.ErrTxEnded)
	}
	if err == nil && t.Shared && t.left != pgtx.Plain { // its statement was refused, and it went on
		return pgtx.ErrSessionState
	}
	return err
}

// Commit commits. If that fails, nothing is settled.
func (t *Tx) Commit(ctx context.Context) error {
	if err := t.awaitEntry(); err != nil { // no handler was called
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	if err := t.tx.Commit(ctx); err != nil {
		t.Settled = nil
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	if t.entry != nil {
		t.entry.Stale = false
	}
	return nil
}

// errAbandoned is the failure of a handler that did not return in time. Its goroutine may still be running and using
// the transaction, which is lost.
var errAbandoned = errors.New("handler did not return after its timeout and was abandoned")

// Call calls a handler in a goroutine, so that neither a panic nor Goexit ends the worker, with a context that is done
// after timeout. It returns AbandonAfter later at the latest, with errAbandoned.
func Call(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	over := make(chan struct{})
	result := errors.New("unset")
	go func() {
		defer close(over)
		defer cancel()
		finished := false
		defer func() {
			if finished {
				return
			}
			// recover returns nil only for Goexit, since panic(nil) became an error
			result = &events.PanicError{Value: recover(), Stack: debug.Stack()}
		}()
		result = call(ctx)
		finished = true
	}()
	select {
	case <-over:
		return result
	case <-ctx.Done():
	}
	pgtx.Pause(context.WithoutCancel(ctx), pgtx.AbandonAfter, over)
	select {
	case <-over:
		return result
	default:
		return errAbandoned
	}
}

// TimedOut reports whether err is the result of the call's own timeout: not of a stop, and not what the handler says of
// the event. Such an error often says no more than that a statement was cancelled.
func TimedOut(ctx context.Context, err error) bool {
	_, final := errors.AsType[*events.TerminalError](err)
	_, payload := errors.AsType[*events.PayloadError](err)
	return err != nil && !final && !payload && errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// ExplainTimeout adds to the error of a call with a transaction that the call timed out, if it did.
func ExplainTimeout(ctx context.Context, timeout time.Duration, err error) error {
	if !TimedOut(ctx, err) {
		return err
	}
	return fmt.Errorf("not done within its timeout of %s; does it wait for a lock? %w", timeout, err)
}
