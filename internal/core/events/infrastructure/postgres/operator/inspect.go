package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// FixedSettings is SQL for a transaction in which every server prints the same, whatever the database or the login has
// set. Names are printed without a schema only if they are pg_catalog's.
const FixedSettings = `set local search_path = pg_catalog; set local timezone = 'UTC';
set local datestyle = 'ISO, MDY'; set local intervalstyle = 'postgres'; set local bytea_output = 'hex';
set local extra_float_digits = 1; set local quote_all_identifiers = off; set local standard_conforming_strings = on`

// MaxListed is how many of the things of one kind an Inspector returns, where there may be very many.
const MaxListed = 20

// lockTimeout bounds how long a statement of an Inspector waits for a lock.
const lockTimeout = 2 * time.Second

// Inspector reads the facts that the doctor judges, on one direct connection. It changes nothing. It is not safe for
// concurrent use.
type Inspector struct {
	config *pgx.ConnConfig
	conn   *pgx.Conn
}

// NewInspector returns an Inspector for the database at url, with that limit for each statement. It connects when it
// first needs to, and again if the connection was lost.
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

// Conn returns the connection, which must not be left in a transaction.
func (i *Inspector) Conn() *pgx.Conn { return i.conn }

// Login returns the name of the login, quoted as SQL needs it.
func (i *Inspector) Login() string { return pgx.Identifier{i.config.User}.Sanitize() }

// RuntimeParams returns the settings that the URL and the environment give to the session.
func (i *Inspector) RuntimeParams() map[string]string { return i.config.RuntimeParams }

// inTx runs work in a read-only transaction as an operator. A login that inherits the role keeps what else it is,
// because it may see more; another takes on the role.
func (i *Inspector) inTx(ctx context.Context, work func(pgx.Tx) error) error {
	tx, err := i.conn.BeginTx(ctx, pgx.TxOptions{
		BeginQuery: "begin isolation level read committed read only; " + FixedSettings})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	const actAs = "select set_config('role', '" + Role + "', true) where not pg_has_role('" + Role + "', 'usage')"
	if _, err := tx.Exec(ctx, actAs); err != nil {
		return err
	}
	return work(tx)
}

// inspect runs one generated query.
func inspect[T any](ctx context.Context, i *Inspector, run func(*coredb.Queries) (T, error)) (facts T, err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) (err error) {
		facts, err = run(coredb.New(tx))
		return err
	})
	return facts, err
}

// rows runs a query that is not generated.
func rows[T any](ctx context.Context, i *Inspector, sql string, arguments ...any) (all []T, err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) error {
		found, _ := tx.Query(ctx, sql, arguments...) // its error is also that of the rows
		all, err = pgx.CollectRows(found, pgx.RowToStructByPos[T])
		return err
	})
	return all, err
}

// IsDenied reports whether the login may not read what it asked for.
func IsDenied(err error) bool { return hasCode(err, pgerrcode.InsufficientPrivilege) }

// IsTimeout reports whether a statement was cancelled, or waited for too long.
func IsTimeout(err error) bool {
	return hasCode(err, pgerrcode.QueryCanceled) || hasCode(err, pgerrcode.LockNotAvailable) ||
		errors.Is(err, context.DeadlineExceeded)
}

func hasCode(err error, code string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == code
}

// The facts; db/queries/core/inspect.sql describes their fields.
type (
	// Server is the version of the server.
	Server = coredb.InspectServerRow
	// Setting is the value of a setting in one scope.
	Setting = coredb.InspectSettingsRow
	// TableFinding is something that changes how statements on a table behave.
	TableFinding = coredb.InspectTablesRow
	// TypeFinding is a difference between a registered event type or publisher and a build.
	TypeFinding = coredb.InspectEventTypesRow
	// LoginFinding is a login that may do more than its group.
	LoginFinding = coredb.InspectLoginsRow
	// Index is an index of our tables.
	Index = coredb.InspectIndexesRow
	// Connections counts the connections of the server.
	Connections = coredb.InspectConnectionsRow
	// LoginLimit is a login with a limit of connections, or an expired password.
	LoginLimit = coredb.InspectLoginLimitsRow
	// Unregistered is a generation that live workers have and core.deployments has not.
	Unregistered = coredb.InspectUnregisteredGenerationsRow
	// IdleClass is a processing class that no live worker of a generation runs.
	IdleClass = coredb.InspectIdleClassesRow
	// Workers counts live and dead workers.
	Workers = coredb.InspectWorkersRow
	// Leases counts events in flight.
	Leases = coredb.InspectLeasesRow
	// ReapLock is a session that keeps the lock of reaping.
	ReapLock = coredb.InspectReapLocksRow
	// Failures counts the dead letters.
	Failures = coredb.InspectFailuresRow
	// Retention is what retention has done.
	Retention = coredb.InspectRetentionRow
	// RetentionLimits bounds what [Inspector.Retention] counts.
	RetentionLimits = coredb.InspectRetentionParams
	// Snapshot is something that keeps dead rows from being removed.
	Snapshot = coredb.InspectSnapshotsRow
	// HiddenSessions counts sessions whose state is not known.
	HiddenSessions = coredb.InspectSessionsRow
	// Blocker is a session that others wait for, or that idles in a transaction.
	Blocker = coredb.InspectBlockersRow
	// Table is a table and how autovacuum treats it.
	Table = coredb.InspectVacuumRow
	// Scale is the size of core.outbox and how long its events take.
	Scale = coredb.InspectScaleRow
)

// Server returns the version of the server and how long it has been up.
func (i *Inspector) Server(ctx context.Context) (Server, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (Server, error) { return q.InspectServer(ctx) })
}

// Time returns the time of the database's clock, in one round trip.
func (i *Inspector) Time(ctx context.Context) (time.Time, error) { return coredb.New(i.conn).Now(ctx) }

// Settings returns the values of settings in every scope.
func (i *Inspector) Settings(ctx context.Context, names []string) ([]Setting, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]Setting, error) { return q.InspectSettings(ctx, names) })
}

// NotificationQueue returns which share of the notification queue is used.
func (i *Inspector) NotificationQueue(ctx context.Context) (float64, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (float64, error) { return q.InspectNotificationQueue(ctx) })
}

// Tables returns what changes how statements on our tables behave.
func (i *Inspector) Tables(ctx context.Context) ([]TableFinding, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]TableFinding, error) { return q.InspectTables(ctx) })
}

// EventTypes compares what is registered with the contracts of a build of generation g; 0: it is not known.
func (i *Inspector) EventTypes(ctx context.Context, contracts json.RawMessage, g events.Generation,
	roles []string) ([]TypeFinding, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]TypeFinding, error) {
		return q.InspectEventTypes(ctx, coredb.InspectEventTypesParams{
			Types: contracts, Generation: int64(g), DefaultClass: events.DefaultClass, Roles: roles})
	})
}

// Logins returns who may do more than their group, which is one of roles.
func (i *Inspector) Logins(ctx context.Context, roles []string) ([]LoginFinding, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]LoginFinding, error) {
		return q.InspectLogins(ctx, coredb.InspectLoginsParams{Roles: roles, AtMost: MaxListed})
	})
}

// Indexes returns the indexes of our tables.
func (i *Inspector) Indexes(ctx context.Context) ([]Index, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]Index, error) { return q.InspectIndexes(ctx) })
}

// Connections returns how many connections there are, and the limits of logins that are members of roles.
func (i *Inspector) Connections(ctx context.Context, roles []string) (all Connections, logins []LoginLimit, err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) error {
		if all, err = coredb.New(tx).InspectConnections(ctx); err != nil {
			return err
		}
		logins, err = coredb.New(tx).InspectLoginLimits(ctx, coredb.InspectLoginLimitsParams{Roles: roles,
			AtMost: MaxListed})
		return err
	})
	return all, logins, err
}

// Generations returns the known generations, those of live workers that are not registered, and the database's time.
func (i *Inspector) Generations(ctx context.Context) (all []Generation, unregistered []Unregistered, now time.Time,
	err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) error {
		q := coredb.New(tx)
		if all, err = generations(ctx, q, nil); err != nil {
			return err
		}
		if unregistered, err = q.InspectUnregisteredGenerations(ctx); err != nil {
			return err
		}
		now, err = q.Now(ctx)
		return err
	})
	return all, unregistered, now, err
}

// Pauses returns the paused types and the database's time.
func (i *Inspector) Pauses(ctx context.Context) (all []Pause, now time.Time, err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) error {
		if all, err = pauses(ctx, coredb.New(tx)); err != nil {
			return err
		}
		now, err = coredb.New(tx).Now(ctx)
		return err
	})
	return all, now, err
}

// IdleClasses returns the processing classes that no live worker of a generation runs.
func (i *Inspector) IdleClasses(ctx context.Context) ([]IdleClass, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]IdleClass, error) {
		return q.InspectIdleClasses(ctx, events.DefaultClass)
	})
}

// Workers counts live and dead workers.
func (i *Inspector) Workers(ctx context.Context) (Workers, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (Workers, error) { return q.InspectWorkers(ctx) })
}

// Leases counts events in flight, with a grace after the end of their lease.
func (i *Inspector) Leases(ctx context.Context, grace time.Duration) (Leases, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (Leases, error) {
		return q.InspectLeases(ctx, int32(grace.Seconds()))
	})
}

// ReapLocks returns sessions that have kept the lock of reaping for longer than grace.
func (i *Inspector) ReapLocks(ctx context.Context, grace time.Duration) ([]ReapLock, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]ReapLock, error) {
		return q.InspectReapLocks(ctx, int32(grace.Seconds()))
	})
}

// Failures counts the dead letters.
func (i *Inspector) Failures(ctx context.Context) (Failures, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (Failures, error) { return q.InspectFailures(ctx) })
}

// Retention returns what retention has done.
func (i *Inspector) Retention(ctx context.Context, limits RetentionLimits) (Retention, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (Retention, error) { return q.InspectRetention(ctx, limits) })
}

// Snapshots returns what keeps dead rows from being removed, and whose sessions are hidden from this login.
func (i *Inspector) Snapshots(ctx context.Context) (all []Snapshot, hidden HiddenSessions, err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) error {
		if all, err = coredb.New(tx).InspectSnapshots(ctx); err != nil {
			return err
		}
		hidden, err = coredb.New(tx).InspectSessions(ctx, true)
		return err
	})
	return all, hidden, err
}

// Transactions returns the sessions that have kept others waiting, or a transaction idle, for longer than idle; the
// prepared transactions, as SQL literals; and how many sessions are hidden from this login.
func (i *Inspector) Transactions(ctx context.Context, idle time.Duration) (blockers []Blocker, prepared []string,
	hidden HiddenSessions, err error) {
	err = i.inTx(ctx, func(tx pgx.Tx) error {
		q := coredb.New(tx)
		blockers, err = q.InspectBlockers(ctx, coredb.InspectBlockersParams{IdleSeconds: idle.Seconds(),
			AtMost: MaxListed})
		if err != nil {
			return err
		}
		if prepared, err = q.InspectPrepared(ctx, MaxListed); err != nil {
			return err
		}
		hidden, err = q.InspectSessions(ctx, false)
		return err
	})
	return blockers, prepared, hidden, err
}

// Vacuum returns the tables and how autovacuum treats them.
func (i *Inspector) Vacuum(ctx context.Context) ([]Table, error) {
	return inspect(ctx, i, func(q *coredb.Queries) ([]Table, error) { return q.InspectVacuum(ctx) })
}

// Scale returns the size of core.outbox and how long its events take, in hours with at least leastEvents events.
func (i *Inspector) Scale(ctx context.Context, slow time.Duration, leastEvents int) (Scale, error) {
	return inspect(ctx, i, func(q *coredb.Queries) (Scale, error) {
		return q.InspectScale(ctx, coredb.InspectScaleParams{SlowMs: slow.Milliseconds(),
			LeastEvents: int64(leastEvents)})
	})
}

// MigrationRecord is what the database says of its migrations. Names are quoted as SQL needs them.
type MigrationRecord struct {
	Newest                 int64   // the newest step that is applied
	Missing                []int64 // older steps that are not recorded as applied
	Owner                  string  // of the record
	OwnerIsSuperuser       bool
	DatabaseOwner          string
	DatabaseOwnerMayRecord bool
}

// Migrations compares the record of migrations with the steps of this build.
func (i *Inspector) Migrations(ctx context.Context, steps []int64) (MigrationRecord, error) {
	found, err := rows[MigrationRecord](ctx, i, `
with applied as (select g.version_id as step from spectral_goose.goose_db_version g where g.is_applied)
select coalesce((select max(step) from applied), 0),
  array(select s from unnest($1::bigint[]) as s where s < (select max(step) from applied)
    and s not in (select step from applied) order by s limit $2),
  quote_ident(o.rolname), o.rolsuper, quote_ident(d.rolname), d.rolsuper or pg_has_role(d.oid, o.oid, 'usage')
from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_roles o on o.oid = c.relowner,
  pg_database b join pg_roles d on d.oid = b.datdba
where (n.nspname, c.relname) = ('spectral_goose', 'goose_db_version') and b.datname = current_database()`,
		steps, MaxListed)
	if err != nil || len(found) == 0 {
		return MigrationRecord{}, errors.Join(err, pgx.ErrNoRows)
	}
	return found[0], nil
}

// PendingType is an event type with pending events in a generation.
type PendingType struct {
	Generation events.Generation
	EventType  string
	Due        int     // events, counted up to a limit
	Seconds    float64 // since the oldest is due
	Status     string  // of the generation, unknown if it is not registered
	Live       int     // workers of the generation
	Handlers   string  // names of those that handle the type
	Paused     bool
	Registered bool   // some build has registered the type
	Class      string // its processing class
	// Adopter is the highest other live generation with a live worker that handles the type; 0: none.
	Adopter events.Generation
}

// PendingTypes returns the types with due events. It counts the events of a type up to countUpTo.
func (i *Inspector) PendingTypes(ctx context.Context, countUpTo int) ([]PendingType, error) {
	return rows[PendingType](ctx, i, `
select k.generation, k.event_type,
  (select count(*) from (select from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null and o.available_at <= statement_timestamp() limit $1) l),
  extract(epoch from statement_timestamp() - d.available_at)::double precision,
  coalesce((select p.status from core.deployments p where p.generation = k.generation), 'unknown'),
  (select count(*) from core.live_workers w where w.generation = k.generation),
  coalesce((select string_agg(w.name, ', ' order by w.name) from core.live_workers w
     where w.generation = k.generation and w.handlers ? k.event_type), ''),
  exists (select from core.paused_types p where p.generation = k.generation and p.event_type = k.event_type),
  exists (select from core.event_types t where t.event_type = k.event_type),
  coalesce((select max(t.class) from core.event_types t where t.event_type = k.event_type), '`+events.DefaultClass+`'),
  coalesce((select max(w.generation) from core.live_workers w join core.deployments p using (generation)
     where w.generation <> k.generation and p.status = 'live' and w.handlers ? k.event_type), 0)
from `+pendingKinds+`,
  lateral (select o.available_at from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null order by o.available_at limit 1) d
where d.available_at <= statement_timestamp() order by k.generation, k.event_type`, countUpTo)
}

// MisroutedEvents are pending events whose channel is not the one that workers of their type listen on.
type MisroutedEvents struct {
	Events            int
	EventType         string
	Generation        events.Generation
	Channel, Expected string
}

// Misrouted returns pending events with a wrong channel. It looks at the first upTo events of each type.
func (i *Inspector) Misrouted(ctx context.Context, upTo int) ([]MisroutedEvents, error) {
	return rows[MisroutedEvents](ctx, i, `
select count(*), k.event_type, k.generation, o.channel, x.expected
from `+pendingKinds+`,
  lateral (select 'outbox_gen_' || k.generation || coalesce('_' || max(t.class), '') as expected
    from core.event_types t where t.event_type = k.event_type) x,
  lateral (select o.channel from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null order by o.available_at limit $1) o
where o.channel <> x.expected
group by k.generation, k.event_type, o.channel, x.expected order by k.generation, k.event_type, o.channel`, upTo)
}

// Notification is what became of one that an Inspector sent to itself.
type Notification struct {
	Pooled  bool // a transaction pooler is in between: it was not sent
	Arrived bool
}

// Notify listens on its own channel, sends a notification from a second connection, and waits for it.
func (i *Inspector) Notify(ctx context.Context, wait time.Duration) (n Notification, err error) {
	var pid uint32
	if err := i.conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return n, err
	}
	if n.Pooled = pid != i.conn.PgConn().PID(); n.Pooled { // a pooler hands out its own number
		return n, nil
	}
	sender, err := pgx.ConnectConfig(ctx, i.config)
	if err != nil {
		return n, fmt.Errorf("connect a second time: %w", err)
	}
	defer func() { _ = sender.Close(context.WithoutCancel(ctx)) }()
	channel := fmt.Sprintf("spectral_doctor_%d", pid)
	if _, err := i.conn.Exec(ctx, "listen "+channel); err != nil {
		return n, err
	}
	defer func() { _, _ = i.conn.Exec(context.WithoutCancel(ctx), "unlisten "+channel) }()
	if _, err := sender.Exec(ctx, "select pg_catalog.pg_notify($1, '')", channel); err != nil {
		return n, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if _, err = i.conn.WaitForNotification(waiting); err == nil {
		n.Arrived = true
	} else if ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded) {
		err = nil
	}
	return n, err
}
