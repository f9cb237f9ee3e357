package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events/infrastructure/postgres/doctordb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// FixedSettings is SQL for a transaction in which every server prints the same, whatever the database or the login has
// set. Names are printed without a schema only if they are pg_catalog's.
const FixedSettings = `set local search_path = pg_catalog; set local timezone = 'UTC';
set local datestyle = 'ISO, MDY'; set local intervalstyle = 'postgres'; set local bytea_output = 'hex';
set local extra_float_digits = 1; set local quote_all_identifiers = off; set local standard_conforming_strings = on`

// lockTimeout bounds how long a statement of an Inspector waits for a lock.
const lockTimeout = 2 * time.Second

// Inspector is the direct connection on which the doctor reads facts. It changes nothing. It is not safe for concurrent
// use.
type Inspector struct {
	config *pgx.ConnConfig
	conn   *pgx.Conn
	tx     pgx.Tx // of Facts, or nil
}

// NewInspector returns an Inspector for the database at url, with that limit for each statement.
func NewInspector(url string, timeout time.Duration) (*Inspector, error) {
	config, err := pgtx.DirectConfig(url)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may keep no prepared statements
	// stronger than the limits of the login and of the database
	limits := fmt.Sprintf("set statement_timeout = %d; set lock_timeout = %d", timeout.Milliseconds(),
		lockTimeout.Milliseconds())
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error { return conn.Exec(ctx, limits).Close() }
	return &Inspector{config: config}, nil
}

// Connect connects unless the connection is still there.
func (i *Inspector) Connect(ctx context.Context) (err error) {
	if i.conn == nil || i.conn.IsClosed() {
		if i.conn, err = pgx.ConnectConfig(ctx, i.config); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	return nil
}

// Close closes the connection.
func (i *Inspector) Close(ctx context.Context) {
	if i.conn != nil {
		_ = i.conn.Close(ctx)
	}
}

// Conn ends the transaction of [Inspector.Facts], and returns the connection, which must not be left in another one.
func (i *Inspector) Conn(ctx context.Context) *pgx.Conn {
	if i.tx != nil {
		_ = i.tx.Rollback(context.WithoutCancel(ctx))
		i.tx = nil
	}
	return i.conn
}

// Facts returns the queries in a new read-only transaction as an operator, instead of the one before. A login that
// inherits the role keeps what else it is, because it may see more; another takes on the role.
func (i *Inspector) Facts(ctx context.Context) (_ *doctordb.Queries, err error) {
	i.tx, err = i.Conn(ctx).BeginTx(ctx, pgx.TxOptions{
		BeginQuery: "begin isolation level read committed read only; " + FixedSettings})
	if err != nil {
		return nil, err
	}
	// the role does not exist before the first migration
	const actAs = "select set_config('role', r.name, true) from (values ('" + Role + "')) r (name) " +
		"where not pg_has_role(to_regrole(r.name), 'usage')"
	_, err = i.tx.Exec(ctx, actAs)
	return doctordb.New(i.tx), err
}

// Login returns the name of the login, quoted as SQL needs it.
func (i *Inspector) Login() string { return pgx.Identifier{i.config.User}.Sanitize() }

// Options returns the settings that the URL or PGOPTIONS gives to the session, as -c name=value.
func (i *Inspector) Options() string { return i.config.RuntimeParams["options"] }

// IsDenied reports whether the login may not read what it asked for.
func IsDenied(err error) bool { return hasCode(err, pgerrcode.InsufficientPrivilege) }

// IsMissing reports whether a statement names a schema, table, function or role that does not exist.
func IsMissing(err error) bool {
	return hasCode(err, pgerrcode.InvalidSchemaName) || hasCode(err, pgerrcode.UndefinedTable) ||
		hasCode(err, pgerrcode.UndefinedFunction) || hasCode(err, pgerrcode.UndefinedObject)
}

// IsTimeout reports whether a statement was cancelled, or waited for too long.
func IsTimeout(err error) bool {
	return hasCode(err, pgerrcode.QueryCanceled) || hasCode(err, pgerrcode.LockNotAvailable) ||
		errors.Is(err, context.DeadlineExceeded)
}

// IsUnavailable reports whether the server was not reached, or cannot work at the moment: it may restart or fail over.
func IsUnavailable(err error) bool {
	return err != nil && (pgtx.ErrorClass(err) == pgtx.ClassConnection || pgtx.ServerState(err) ||
		pgconn.SafeToRetry(err) || errors.Is(err, pgconn.ErrConnClosed))
}

func hasCode(err error, code string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == code
}

// MigrationRecord is what the database says of its migrations. Names are quoted as SQL needs them.
type MigrationRecord struct {
	Newest                 int64   // the newest step that is applied
	Missing                []int64 // older steps that are not recorded as applied, up to 20
	Owner                  string  // of the record
	OwnerIsSuperuser       bool
	DatabaseOwner          string
	DatabaseOwnerMayRecord bool
}

// Migrations compares the record of migrations with the steps of this build, in the transaction of [Inspector.Facts].
func (i *Inspector) Migrations(ctx context.Context, steps []int64) (MigrationRecord, error) {
	// the error of Query is also that of the rows
	found, _ := i.tx.Query(ctx, `
with applied as (select g.version_id as step from spectral_goose.goose_db_version g where g.is_applied)
select coalesce((select max(step) from applied), 0),
  array(select s from unnest($1::bigint[]) as s where s < (select max(step) from applied)
    and s not in (select step from applied) order by s limit 20),
  quote_ident(o.rolname), o.rolsuper, quote_ident(d.rolname), d.rolsuper or pg_has_role(d.oid, o.oid, 'usage')
from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_roles o on o.oid = c.relowner,
  pg_database b join pg_roles d on d.oid = b.datdba
where (n.nspname, c.relname) = ('spectral_goose', 'goose_db_version') and b.datname = current_database()`, steps)
	return pgx.CollectExactlyOneRow(found, pgx.RowToStructByPos[MigrationRecord])
}

// Notification is what became of one that an Inspector sent to itself.
type Notification struct {
	Pooled  bool // a transaction pooler is in between: it was not sent
	Arrived bool
}

// Notify listens on its own channel, sends a notification from a second connection, and waits for it.
func (i *Inspector) Notify(ctx context.Context, wait time.Duration) (n Notification, err error) {
	conn := i.Conn(ctx)
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return n, err
	}
	if n.Pooled = pid != conn.PgConn().PID(); n.Pooled { // a pooler hands out its own number
		return n, nil
	}
	sender, err := pgx.ConnectConfig(ctx, i.config)
	if err != nil {
		return n, fmt.Errorf("connect a second time: %w", err)
	}
	defer func() { _ = sender.Close(context.WithoutCancel(ctx)) }()
	channel := fmt.Sprintf("spectral_doctor_%d", pid)
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return n, err
	}
	defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), "unlisten "+channel) }()
	if _, err := sender.Exec(ctx, "select pg_catalog.pg_notify($1, '')", channel); err != nil {
		return n, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, err = conn.WaitForNotification(waiting)
	n.Arrived = err == nil
	if ctx.Err() == nil && waiting.Err() != nil {
		err = nil
	}
	return n, err
}
