package postgres

import (
	"context"
	"fmt"
	"strings"

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

// beginAs begins a transaction as role, in one round trip. READ COMMITTED whatever the role's
// default says: the dedup insert would raise 40001 at a higher level. The empty search_path makes
// unqualified SQL fail everywhere alike, and keeps objects in public out of reach.
func beginAs(ctx context.Context, conn *pgxpool.Conn, role string, workspace uuid.NullUUID) (pgx.Tx, error) {
	return conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin isolation level read committed; " +
		"set local search_path = ''; " + actAs(role, workspace)})
}

// actAs is SQL that sets the role and the workspace whose rows it sees, until the transaction or
// savepoint ends. An absent workspace is set too: a value once set outlives its savepoint. The
// role is always named, never RESET: that would fall back to the login, past row-level security.
func actAs(role string, workspace uuid.NullUUID) string {
	value := ""
	if workspace.Valid {
		value = workspace.UUID.String()
	}
	return fmt.Sprintf("set local role %s; set local spectral.workspace_id = '%s'",
		pgx.Identifier{role}.Sanitize(), strings.ReplaceAll(value, "'", "''"))
}
