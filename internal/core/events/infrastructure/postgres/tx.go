package postgres

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

// ErrTxOver is what a Tx answers once the handler or unit of work it was built for has returned.
var ErrTxOver = errors.New("this transaction's handler or unit of work has returned: its Tx may not be used any more")

// lentTx lends a transaction to user code: query methods only, so that no type assertion reaches
// Commit or Rollback, and an error from each once it is taken back. It guards against mistakes.
type lentTx struct {
	tx   pgx.Tx
	over atomic.Bool
}

var _ events.Tx = (*lentTx)(nil)

func (l *lentTx) takeBack() { l.over.Store(true) }

func (l *lentTx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if l.over.Load() {
		return pgconn.CommandTag{}, ErrTxOver
	}
	return l.tx.Exec(ctx, sql, arguments...)
}

func (l *lentTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if l.over.Load() {
		return nil, ErrTxOver
	}
	return l.tx.Query(ctx, sql, args...)
}

func (l *lentTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if l.over.Load() {
		return overRow{}
	}
	return l.tx.QueryRow(ctx, sql, args...)
}

func (l *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if l.over.Load() {
		return overBatch{}
	}
	return l.tx.SendBatch(ctx, b)
}

func (l *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if l.over.Load() {
		return 0, ErrTxOver
	}
	return l.tx.CopyFrom(ctx, table, columns, source)
}

type overRow struct{}

func (overRow) Scan(...any) error { return ErrTxOver }

type overBatch struct{}

func (overBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, ErrTxOver }
func (overBatch) Query() (pgx.Rows, error)         { return nil, ErrTxOver }
func (overBatch) QueryRow() pgx.Row                { return overRow{} }
func (overBatch) Close() error                     { return ErrTxOver }
func (overBatch) Tx() pgx.Tx                       { return nil }
