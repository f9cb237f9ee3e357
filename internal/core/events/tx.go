package events

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a transaction as handlers and repositories see it: the driver's query methods, which
// generated code accepts, without Commit and Rollback: return an error to roll it back, nil to commit it. This
// is the one place of the ports that knows the driver. Not safe for concurrent use.
//
// A text holds one statement; BEGIN, COMMIT, ROLLBACK and their like are refused. SET LOCAL ends with the transaction,
// but costs a handler its batches. Any other session state (SET, set_config, temporary tables, session locks, cursors,
// DO, CALL) costs it the connection as well.
type Tx interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error)
}
