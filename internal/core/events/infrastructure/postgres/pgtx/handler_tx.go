package pgtx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

var (
	// ErrTxOver is returned by a Tx whose handler or unit of work has returned.
	ErrTxOver = errors.New("this transaction's handler or unit of work has returned: its Tx may not be used any more")
	// ErrTxControl is returned for a statement that would begin or end a transaction.
	ErrTxControl = errors.New("handlers and units of work do not end their transaction: return an error to roll it " +
		"back, nil to commit it")
	// ErrTxInUse is the failure of a handler or unit of work that returned while a goroutine was using its Tx.
	ErrTxInUse = errors.New("returned while one of its goroutines was still using the transaction")
	// ErrTxEnded is the failure of a handler or unit of work that ended its transaction.
	ErrTxEnded = errors.New("ended the transaction it was given")
	// ErrSessionState undoes a batch, whose rows are then handled one by one.
	ErrSessionState = errors.New("session state is refused in a batch: its events are handled again one by one")

	// the simple protocol takes several statements in one text
	errSimpleProtocol = fmt.Errorf("leave pgx.QueryExecModeSimpleProtocol out, it could hide a COMMIT: %w", ErrTxControl)
)

// HandlerTx is the transaction passed to a handler or unit of work. It has query methods only, so that no type
// assertion reaches Commit or Rollback, and each returns an error after Revoke. It guards against mistakes, not against
// malice.
//
// It uses the extended protocol only, which takes one statement per text, so the first words of a text decide.
type HandlerTx struct {
	tx     *Tx
	shared bool // with other events: session state is refused

	mu    sync.Mutex
	calls int // running
	over  bool
	state StatementKind // the strictest of the statements so far
}

var _ events.Tx = (*HandlerTx)(nil)

// NewHandlerTx returns a HandlerTx on tx. One that is shared by several events refuses session state.
func NewHandlerTx(tx *Tx, shared bool) *HandlerTx { return &HandlerTx{tx: tx, shared: shared} }

// Revoke lets no further call begin. It reports whether a call is still running: then a goroutine that outlived its
// handler is using the transaction. Left is the strictest kind of the statements.
func (h *HandlerTx) Revoke() (inUse bool, left StatementKind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return h.calls > 0, h.state
}

// begin checks the statements and arguments of a call and counts it as running, until done.
func (h *HandlerTx) begin(args []any, statements ...string) error {
	if slices.Contains(args, any(pgx.QueryExecModeSimpleProtocol)) {
		return errSimpleProtocol
	}
	kind := Plain
	for _, sql := range statements {
		kind = max(kind, readStatement(sql))
	}
	if kind == TransactionControl {
		return ErrTxControl
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
		return ErrTxOver
	case h.calls > 0:
		return errBusy
	case h.tx.Ended():
		return ErrTxEnded // the next statement would commit by itself
	}
	h.state = max(h.state, kind)
	if h.shared && kind != Plain {
		return ErrSessionState
	}
	h.calls++
	return nil
}

// start is begin for a statement that runs at once: it sends what is queued. The statement may call a function that
// sets another role.
func (h *HandlerTx) start(ctx context.Context, args []any, statements ...string) error {
	if err := h.begin(args, statements...); err != nil {
		return err
	}
	err := h.tx.Flush(ctx)
	if err != nil {
		h.done()
	}
	h.tx.forgetActor()
	return err
}

func (h *HandlerTx) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls--
}

// Exec implements [events.Tx].
func (h *HandlerTx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if err := h.start(ctx, arguments, sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer h.done()
	if len(arguments) == 0 {
		arguments = []any{pgx.QueryExecModeExec} // one round trip, and nothing is cached
	}
	// the driver's Exec uses the simple protocol if there are no arguments
	rows, err := h.tx.conn.Query(ctx, sql, arguments...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// Query implements [events.Tx].
func (h *HandlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := h.start(ctx, args, sql); err != nil {
		return nil, err
	}
	defer h.done()
	return h.tx.conn.Query(ctx, sql, args...)
}

// QueryRow implements [events.Tx].
func (h *HandlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := h.start(ctx, args, sql); err != nil {
		return refusedRow{err}
	}
	defer h.done()
	return h.tx.conn.QueryRow(ctx, sql, args...)
}

// SendBatch implements [events.Tx].
func (h *HandlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	statements := make([]string, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		statements[i] = q.SQL
	}
	if err := h.start(ctx, nil, statements...); err != nil {
		return refusedBatch{err}
	}
	defer h.done()
	return h.tx.conn.SendBatch(ctx, b)
}

// CopyFrom implements [events.Tx].
func (h *HandlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	source pgx.CopyFromSource) (int64, error) {
	if err := h.start(ctx, nil); err != nil {
		return 0, err
	}
	defer h.done()
	return h.tx.conn.CopyFrom(ctx, table, columns, source)
}

// QueueRow queues a query of one row, and passes the row to result when it is sent: before the next statement, or with
// COMMIT.
func (h *HandlerTx) QueueRow(ctx context.Context, sql string, args []any, result func(pgx.Row) error) error {
	if err := h.begin(args, sql); err != nil {
		return err
	}
	defer h.done()
	if err := h.tx.Ready(ctx); err != nil {
		return result(refusedRow{err})
	}
	if err := h.tx.prepare(ctx, sql); err != nil {
		return result(refusedRow{err})
	}
	h.tx.Queue(sql, args...).QueryRow(result)
	return nil
}

type refusedRow struct{ err error }

func (r refusedRow) Scan(...any) error { return r.err }

type refusedBatch struct{ err error }

func (r refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, r.err }
func (r refusedBatch) Query() (pgx.Rows, error)         { return nil, r.err }
func (r refusedBatch) QueryRow() pgx.Row                { return refusedRow(r) }
func (r refusedBatch) Close() error                     { return r.err }
func (r refusedBatch) Tx() pgx.Tx                       { return nil }
