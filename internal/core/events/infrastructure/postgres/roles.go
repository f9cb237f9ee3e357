package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// actor is what a transaction acts as.
type actor struct {
	role      string
	workspace uuid.NullUUID
	// idle is how long it may wait for its next statement before the server ends it; zero means
	// idleTimeout.
	idle time.Duration
}

// idleTimeout is how long a transaction may stand idle: a frozen process holds its locks and claims
// no longer. It has to be more than what a handler may take between two statements.
const idleTimeout = time.Minute

// beginAs begins a transaction on conn, of pool, in one round trip and bounded time. What a default
// of the login or the database could make otherwise is said: at a higher isolation level the dedup
// insert would raise 40001, with row_security off every policy would be an error, and a timeout
// meant for people would end handlers. After an error conn is closed, for the next one to try would
// get it again; a server that cannot be written to empties the pool, so that new connections go
// where the address leads now.
func beginAs(ctx context.Context, pool *pgxpool.Pool, conn *pgxpool.Conn, as actor) (pgx.Tx, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if as.idle == 0 {
		as.idle = idleTimeout
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin isolation level read committed read write; " +
		ownSettings(conn.Conn().PgConn(), as.idle) + actAs(as.role, as.workspace)})
	if err == nil {
		return tx, nil
	}
	closeBeforeRelease(conn)
	if readOnlyServer(err) {
		pool.Reset()
		err = fmt.Errorf("%w (%w)", errStandby, err)
	}
	return nil, fmt.Errorf("begin as %s: %w", as.role, err)
}

// ownSettings are what a transaction is run under, whatever the login or the database has set.
func ownSettings(conn *pgconn.PgConn, idle time.Duration) string {
	return "set local row_security = on; " + Unbounded(conn) +
		fmt.Sprintf("set local idle_in_transaction_session_timeout = %d; set local tcp_user_timeout = %[1]d; ", idle.Milliseconds())
}

// Unbounded are the statements, ready to be followed by others, by which a transaction and what it waits for may take as long as its caller's
// context lasts, whatever the login or the database has set.
func Unbounded(conn *pgconn.PgConn) string {
	return "set local statement_timeout = 0; set local lock_timeout = 0; " + noTransactionTimeout("set local", conn)
}

// noTransactionTimeout is the statement that takes the limit on a transaction's length away, where
// the server has one, which is since version 17.
func noTransactionTimeout(set string, conn *pgconn.PgConn) string {
	if version := conn.ParameterStatus("server_version"); len(version) < 2 || version[:2] < "17" {
		return ""
	}
	return set + " transaction_timeout = 0; "
}

// inTx runs one of the adapter's own, short pieces of work in a transaction as role.
func inTx(ctx context.Context, pool *pgxpool.Pool, role string, work func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return ActAs(ctx, pool, role, work)
}

// ActAs runs work in one transaction as role, as the adapter's own transactions run: READ COMMITTED, read write, with an
// empty search_path, whatever the defaults of the login and the database. Ctx alone bounds it.
func ActAs(ctx context.Context, pool *pgxpool.Pool, role string, work func(pgx.Tx) error) error {
	conn, err := acquire(ctx, pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := beginAs(ctx, pool, conn, actor{role: role})
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
