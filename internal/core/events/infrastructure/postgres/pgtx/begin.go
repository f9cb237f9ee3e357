package pgtx

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
)

// Roles of the adapter itself. Handlers run as the role of their context.
const (
	WorkerRole   = "spectral_worker"   // claims, deduplicates and settles
	OperatorRole = "spectral_operator" // reads the outbox
)

// ContextRole returns the database role of a bounded context.
func ContextRole(s events.Scope) (string, error) {
	switch s {
	case events.Platform, events.Worlds:
		return "spectral_" + string(s), nil
	default:
		return "", fmt.Errorf("scope %q is not a bounded context and has no database role", s)
	}
}

// NoWorkspace is the workspace of a transaction that sees no workspace's rows.
var NoWorkspace uuid.NullUUID

// Begin takes a connection of pool within StatementTimeout (handlers that want a second one may have emptied the pool).
// On a direct connection, whose session has most settings, BEGIN is only queued; otherwise it is sent at once, with all
// settings. The server ends the transaction when it waits for a statement for longer than idle. No default of the login
// or the database takes effect: a higher isolation level would raise 40001 in the dedup insert, row_security off would
// make every policy an error, and a timeout meant for people would end handlers. The caller releases the connection.
func Begin(ctx context.Context, pool *pgxpool.Pool, role string, workspace uuid.NullUUID,
	idle time.Duration) (*pgxpool.Conn, *Tx, error) {
	acquiring, cancel := context.WithTimeout(ctx, StatementTimeout)
	defer cancel()
	conn, err := pool.Acquire(acquiring)
	if err != nil {
		return nil, nil, fmt.Errorf("take a connection from the pool: %w", err)
	}
	t := &Tx{pool: pool, conn: conn, queued: &pgx.Batch{}}
	const begin = "begin isolation level read committed read write"
	if _, direct := preparedOn(conn); !direct { // in one message, so that a pooler does not split it
		ctx, cancel = context.WithTimeout(ctx, StatementTimeout)
		defer cancel()
		_, err := conn.Exec(ctx, begin+"; "+OwnSettings("set local", conn.Conn().PgConn(), idle)+
			RoleSettings(role, workspace))
		if err != nil {
			err = t.notBegun(err)
			conn.Release()
			return nil, nil, err
		}
		t.begun, t.wanted = true, actor{role, workspace}
		t.actor = t.wanted
		return conn, t, nil
	}
	t.Queue(begin)
	if idle != IdleTimeout {
		t.Queue("select pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true), "+
			"pg_catalog.set_config('tcp_user_timeout', $1, true)", strconv.FormatInt(idle.Milliseconds(), 10))
	}
	t.Act(role, workspace)
	t.queueActor()
	t.own = t.queued.Len()
	return conn, t, nil
}

// OwnSettings returns the statements, each with its semicolon, that make a transaction (set local) or session (set)
// independent of the settings of the login and the database.
func OwnSettings(set string, conn *pgconn.PgConn, idle time.Duration) string {
	return set + " row_security = on; " + Unbounded(set, conn) + idleSettings(set, idle)
}

// setSession sets in the session of a direct connection what [Begin] would set in each transaction. A handler that
// changes it has its connection closed. The defaults of transactions are for single statements, such as the journal's.
func setSession(ctx context.Context, conn *pgconn.PgConn) error {
	conn.CustomData()[preparedKey] = make(map[string]bool)
	return conn.Exec(ctx, OwnSettings("set", conn, IdleTimeout)+
		"set default_transaction_read_only = off; set default_transaction_isolation = 'read committed'").Close()
}

// SetSessionRole makes the sessions of config act as role outside transactions too, and reports true. For a config that
// may lead through a pooler, which has no AfterConnect, it does nothing.
func SetSessionRole(config *pgx.ConnConfig, role string) bool {
	set := config.AfterConnect
	if set == nil {
		return false
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := set(ctx, conn); err != nil {
			return err
		}
		return conn.Exec(ctx, "set role "+pgx.Identifier{role}.Sanitize()).Close()
	}
	return true
}

func idleSettings(set string, idle time.Duration) string {
	return fmt.Sprintf("%s idle_in_transaction_session_timeout = %d; %[1]s tcp_user_timeout = %[2]d; ", set,
		idle.Milliseconds())
}

// Unbounded returns the statements, each with its semicolon, that let a transaction and its waits take as long as its
// caller's context lasts, whatever the login or the database has set.
func Unbounded(set string, conn *pgconn.PgConn) string {
	return fmt.Sprintf("%s statement_timeout = 0; %[1]s lock_timeout = 0; ", set) + NoTransactionTimeout(set, conn)
}

// NoTransactionTimeout returns the statement that removes the limit on a transaction's length. Servers before version
// 17 have none.
func NoTransactionTimeout(set string, conn *pgconn.PgConn) string {
	if version := conn.ParameterStatus("server_version"); len(version) < 2 || version[:2] < "17" {
		return ""
	}
	return set + " transaction_timeout = 0; "
}

// RoleSettings returns the statement that sets the role, and the workspace whose rows it sees, until the transaction or
// savepoint ends. With the empty search_path, unqualified names fail everywhere alike. All three are set each time: a
// function that the last handler called may have changed them. It is a query because pg_stat_statements would keep a
// text of SET for each workspace. The role is always named: RESET ROLE would fall back to the login, past row-level
// security.
func RoleSettings(role string, workspace uuid.NullUUID) string {
	return fmt.Sprintf(roleSettings, "'"+strings.ReplaceAll(role, "'", "''")+"'", "'"+WorkspaceText(workspace)+"'")
}

const roleSettings = "select pg_catalog.set_config('search_path', '', true), " +
	"pg_catalog.set_config('role', %s, true), pg_catalog.set_config('spectral.workspace_id', %s, true)"

// The paths that events take; core.relay has the one that is taken.
const (
	PathPostgres  = "postgres"  // claimed and handled
	PathBoth      = "both"      // the same, and sent to a broker too: for a comparison
	PathJetStream = "jetstream" // sent to a broker, and handled when they come back
)

// InTx is [RunAs] within StatementTimeout, which the context that work gets is bounded by.
func InTx(ctx context.Context, pool *pgxpool.Pool, role string, work func(context.Context, *Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, StatementTimeout)
	defer cancel()
	return RunAs(ctx, pool, role, func(tx *Tx) error { return work(ctx, tx) })
}

// RunAs runs work in one transaction as role, with the settings of [Begin], and commits it if work returns nil. Only
// ctx bounds it.
func RunAs(ctx context.Context, pool *pgxpool.Pool, role string, work func(*Tx) error) error {
	conn, tx, err := Begin(ctx, pool, role, NoWorkspace, IdleTimeout)
	if err != nil {
		return err
	}
	defer conn.Release()
	defer tx.Rollback()
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// CloseBeforeRelease closes conn, so that the pool does not give it to anyone else.
func CloseBeforeRelease(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), RollbackTimeout)
	defer cancel()
	_ = conn.Conn().Close(ctx)
}
