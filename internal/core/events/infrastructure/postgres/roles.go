package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
)

// workerRole claims, dedups and settles; handlers run as their context's role.
const workerRole = "spectral_worker"

// scopeRole is the database role of a bounded context.
func scopeRole(s events.Scope) (string, error) {
	switch s {
	case events.Platform, events.Worlds:
		return "spectral_" + string(s), nil
	default:
		return "", fmt.Errorf("scope %q is not a bounded context and has no database role", s)
	}
}

var noWorkspace uuid.NullUUID

// beginAs begins a transaction as role, in one round trip and bounded time. What a default of the
// login or the database could make otherwise is said: at a higher isolation level the dedup insert
// would raise 40001, with row_security off every policy would be an error.
func beginAs(ctx context.Context, conn *pgxpool.Conn, role string, workspace uuid.NullUUID) (pgx.Tx, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin isolation level read committed read write; " +
		"set local row_security = on; " + actAs(role, workspace)})
	if err != nil {
		return nil, fmt.Errorf("begin as %s: %w", role, err)
	}
	return tx, nil
}

// inTx runs one of the adapter's own, short pieces of work in a transaction as role.
func inTx(ctx context.Context, pool *pgxpool.Pool, role string, work func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, err := acquire(ctx, pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := beginAs(ctx, conn, role, noWorkspace)
	if err != nil {
		return err
	}
	defer rollback(tx)
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// rollback gives a transaction up, whatever became of its context. After a commit it does nothing.
func rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// actAs is SQL that sets the role and the workspace whose rows it sees, until the transaction or
// savepoint ends. The empty search_path makes unqualified SQL fail everywhere alike, and keeps
// objects in public out of reach. An absent workspace is set too: a value once set outlives its savepoint. The
// role is always named, never RESET: that would fall back to the login, past row-level security.
func actAs(role string, workspace uuid.NullUUID) string {
	value := ""
	if workspace.Valid {
		value = workspace.UUID.String()
	}
	return fmt.Sprintf("set local search_path = ''; set local role %s; set local spectral.workspace_id = '%s'",
		pgx.Identifier{role}.Sanitize(), value)
}
