package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

var (
	// ErrTxOver is what a Tx answers once the handler or unit of work it was lent to has returned.
	ErrTxOver = errors.New("this transaction's handler or unit of work has returned: its Tx may not be used any more")
	// ErrTxControl is what a Tx answers to a statement that would end the transaction.
	ErrTxControl = errors.New("whoever began the transaction ends it: return an error to undo it, nil to keep it")
)

// lentTx lends a transaction to user code: query methods only, so that no type assertion reaches
// Commit or Rollback, and an error from each once it is taken back. It guards against mistakes.
type lentTx struct {
	tx pgx.Tx

	mu    sync.Mutex
	calls int // in flight
	over  bool
	ended bool // a statement has ended the transaction
	left  remains
}

var _ events.Tx = (*lentTx)(nil)

// takeBack lets no further call begin, and reports whether one is in flight: the transaction is
// then still in use, by a goroutine that outlived its handler.
func (l *lentTx) takeBack() (inUse bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return l.calls > 0
}

// leaves reports whether the session is no longer as it was, as far as the statements tell, and in particular without its
// prepared statements.
func (l *lentTx) leaves() (kept, forgot bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left.kept, l.left.forgot
}

// takeSettings returns what statements have left behind in the transaction since the last call: SQL that takes it back, and
// whether there is something that it does not.
func (l *lentTx) takeSettings() (undo string, opaque bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	undo, opaque = strings.Join(l.left.undo, ""), l.left.opaque
	l.left.undo, l.left.opaque = nil, false
	return undo, opaque
}

// begin notes a call of these statements; whoever gets nil calls done.
func (l *lentTx) begin(statements ...string) error {
	var left remains
	for _, sql := range statements {
		found := remainsOf(sql)
		if found.control != "" {
			return &controlError{found.control}
		}
		left.also(found)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return errTxEnded
	case l.over:
		return ErrTxOver
	}
	l.calls++
	l.left.also(left)
	return nil
}

// beginWith is begin of a statement with arguments.
func (l *lentTx) beginWith(sql string, args []any) error {
	// several statements in one text, with arguments
	if slices.Contains(args, any(pgx.QueryExecModeSimpleProtocol)) {
		return &controlError{"leave pgx.QueryExecModeSimpleProtocol out, several statements could hide behind it"}
	}
	return l.begin(sql)
}

// hasEnded reports whether the statement just executed has ended the transaction after all. Then the Tx is over at once: what
// came next would be committed by itself.
func (l *lentTx) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls == 1 && l.tx.Conn().PgConn().TxStatus() == 'I' {
		l.ended = true
	}
	return l.ended
}

func (l *lentTx) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
}

// controlError is an ErrTxControl that names the statement.
type controlError struct{ statement string }

func (e *controlError) Error() string { return e.statement + ": " + ErrTxControl.Error() }
func (e *controlError) Unwrap() error { return ErrTxControl }

func (l *lentTx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if err := l.beginWith(sql, arguments); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer l.done()
	tag, err := l.tx.Exec(ctx, sql, arguments...)
	if l.hasEnded() { // no other call takes several statements in one
		err = errors.Join(err, errTxEnded)
	}
	return tag, err
}

func (l *lentTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.beginWith(sql, args); err != nil {
		return nil, err
	}
	defer l.done()
	return l.tx.Query(ctx, sql, args...)
}

func (l *lentTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.beginWith(sql, args); err != nil {
		return refusedRow{err}
	}
	defer l.done()
	return l.tx.QueryRow(ctx, sql, args...)
}

func (l *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	statements := make([]string, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		statements[i] = q.SQL
	}
	if err := l.begin(statements...); err != nil {
		return refusedBatch{err}
	}
	defer l.done()
	return l.tx.SendBatch(ctx, b)
}

func (l *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := l.begin(); err != nil {
		return 0, err
	}
	defer l.done()
	return l.tx.CopyFrom(ctx, table, columns, source)
}

type refusedRow struct{ err error }

func (r refusedRow) Scan(...any) error { return r.err }

type refusedBatch struct{ err error }

func (r refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, r.err }
func (r refusedBatch) Query() (pgx.Rows, error)         { return nil, r.err }
func (r refusedBatch) QueryRow() pgx.Row                { return refusedRow(r) }
func (r refusedBatch) Close() error                     { return r.err }
func (r refusedBatch) Tx() pgx.Tx                       { return nil }
