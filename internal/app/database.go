package app

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/db"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
)

// oldestPostgres is the first major version whose features the migrations use.
const oldestPostgres = 15

// The version table has its own schema, so that another program's goose_db_version in the database is never taken for
// ours.
const (
	versionSchema = "spectral_goose"
	versionTable  = versionSchema + ".goose_db_version"
)

const checkTimeout = 10 * time.Second // of the connection, and then of the checks

// CheckDatabase returns in one line why a worker cannot run, and what to do: the database cannot be reached, is too old
// or not migrated, or the login may not act as a worker or in one of the further roles. It also checks the console's
// login, if there is a console. It sets in s whether PoolURL leads through a pooler.
func CheckDatabase(ctx context.Context, s *Settings, further ...string) error {
	check := func(ctx context.Context, conn *pgx.Conn) error {
		var pid uint32
		if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
			return fmt.Errorf("ask for the server process: %w", err)
		}
		s.Pooled = pid != conn.PgConn().PID() // a pooler returns its own number; PoolURL is checked last
		for _, role := range further {
			if err := actAs(ctx, conn, role); err != nil {
				return err
			}
		}
		return checkMigrated(ctx, conn, pgtx.WorkerRole)
	}
	err := inspect(ctx, EnvDatabaseURL, s.DatabaseURL, check)
	if err == nil && s.PoolURL != s.DatabaseURL {
		err = inspect(ctx, EnvPoolURL, s.PoolURL, check)
	}
	if err == nil && s.Console != nil {
		err = s.Console.Check(ctx)
	}
	return err
}

// inspect connects to url, the value of an environment variable, and checks the server's version. It calls check in a
// transaction, so that a pooler's connection keeps no role.
func inspect(ctx context.Context, variable, url string, check func(context.Context, *pgx.Conn) error) error {
	config, err := pgtx.DirectConfig(url)
	if err != nil {
		return settingsError("%s: %w", variable, err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may keep no prepared statements
	if err := withConnection(ctx, config, func(ctx context.Context, conn *pgx.Conn) error {
		if err := checkVersion(conn); err != nil {
			return err
		}
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin; " + pgtx.Unbounded("set local", conn.PgConn())})
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		return check(ctx, conn)
	}); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return nil
}

// CheckDrainable refuses a generation that is not registered: a worker would make it live when it starts, and SQL
// producers would publish into it even after the worker has drained it and ended.
func CheckDrainable(ctx context.Context, s Settings) error {
	var registered bool
	err := inspect(ctx, EnvDatabaseURL, s.DatabaseURL, func(ctx context.Context, conn *pgx.Conn) error {
		if err := actAs(ctx, conn, pgtx.WorkerRole); err != nil {
			return err
		}
		err := conn.QueryRow(ctx, "select exists (select from core.deployments d where d.generation = $1)",
			int64(s.Generation)).Scan(&registered)
		if err != nil {
			return fmt.Errorf("look for generation %d: %w", s.Generation, err)
		}
		return nil
	})
	if err == nil && !registered {
		return fmt.Errorf("generation %d is not registered, and a worker would make it live: check %s; if events of it are "+
			"left, first `workers generation drain %[1]d`", s.Generation, EnvGeneration)
	}
	return err
}

// CheckOperator is [CheckDatabase] for the login of an operator.
func CheckOperator(ctx context.Context, url string) error {
	return inspect(ctx, EnvDatabaseURL, url, func(ctx context.Context, conn *pgx.Conn) error {
		return checkMigrated(ctx, conn, pgtx.OperatorRole)
	})
}

// Operator is what operators act with on one database. Close it after use.
type Operator struct {
	Events    *operator.Client
	Retention *retentionpg.Store
	pool      *pgxpool.Pool
}

// Close closes the connections.
func (o *Operator) Close() { pgtx.ClosePool(o.pool) }

// OpenOperator connects to the database at url as an operator, if the login passes [CheckOperator].
func OpenOperator(ctx context.Context, url string) (*Operator, error) {
	if err := CheckOperator(ctx, url); err != nil {
		return nil, err
	}
	config, err := pgtx.PoolConfig(url, 0, true)
	if err != nil {
		return nil, settingsError("%s: %w", EnvDatabaseURL, err)
	}
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error { // operators see times in UTC
		conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
			Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connection pool: %w", err)
	}
	return &Operator{operator.New(pool), retentionpg.New(pool, operator.Role), pool}, nil
}

func withConnection(ctx context.Context, config *pgx.ConnConfig, check func(context.Context, *pgx.Conn) error) error {
	connecting, connected := context.WithTimeout(ctx, checkTimeout)
	defer connected()
	conn, err := pgx.ConnectConfig(connecting, config)
	if err != nil {
		return fmt.Errorf("cannot connect to Postgres at %s:%d: %w", config.Host, config.Port, connectCause(err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return check(ctx, conn)
}

func checkVersion(conn *pgx.Conn) error {
	version := conn.PgConn().ParameterStatus("server_version")
	// it begins with a number: 15.4, 14.9 (Debian 14.9-1), 19devel
	end := strings.IndexFunc(version+".", func(r rune) bool { return r < '0' || r > '9' })
	if major, err := strconv.Atoi(version[:end]); err != nil || major < oldestPostgres {
		return fmt.Errorf("PostgreSQL %s is too old: %d or later is required", version, oldestPostgres)
	}
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		return fmt.Errorf("database %s has encoding %s: create it with ENCODING 'UTF8'", conn.Config().Database, encoding)
	}
	return nil
}

// connectCause returns why each host failed, in the last attempt on it, and what to do.
func connectCause(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch code := pg.Code; {
		case code == pgerrcode.InvalidPassword, code == pgerrcode.InvalidAuthorizationSpecification:
			return errors.New(pg.Message + "; check the user and password in the URL")
		case code == pgerrcode.InvalidCatalogName:
			return errors.New(pg.Message + "; check the database name in the URL")
		case code == pgerrcode.UndefinedObject: // it quotes the name, and the others the value
			return settingsError("%s; check the keywords of the URL, and PGOPTIONS and PGTZ", pg.Message)
		case pgerrcode.IsDataException(code), code == pgerrcode.SyntaxError, code == pgerrcode.CantChangeRuntimeParam:
			return settingsError("the server refuses the value of a keyword of the URL, or of PGOPTIONS or PGTZ (SQLSTATE %s)",
				code)
		}
		return fmt.Errorf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	// The driver's error has a line for the whole, and one for each try, first with TLS:
	//
	//	failed to connect to `user=u database=d`:
	//		10.0.0.1:5432 (db1): tls error: server refused TLS connection
	//		10.0.0.1:5432 (db1): dial error: connection refused
	var causes []string
	for line := range strings.SplitSeq(strings.TrimSpace(err.Error()), "\n") {
		line = strings.TrimSpace(line)
		host, _, isTry := strings.Cut(line, "): ")
		if last := len(causes) - 1; isTry && last >= 0 && strings.HasPrefix(causes[last], host) {
			causes[last] = line // the same host without TLS
		} else if !strings.HasSuffix(line, "`:") { // that line has the user and the database
			causes = append(causes, line)
		}
	}
	return fmt.Errorf("%s; check the URL and that the server runs", strings.Join(causes, "; "))
}

// ErrNotMigrated is returned for a database in which nothing says how far it is migrated.
var ErrNotMigrated = errors.New("the database is not migrated: run `workers migrate up`")

// actAs sets the role for the rest of the transaction.
func actAs(ctx context.Context, conn *pgx.Conn, role string) error {
	_, err := conn.Exec(ctx, "set local role "+pgx.Identifier{role}.Sanitize())
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case ok && pg.Code == pgerrcode.InvalidParameterValue:
		return fmt.Errorf("role %s is missing: run `workers migrate repair`", role)
	case ok && pg.Code == pgerrcode.InsufficientPrivilege:
		login := pgx.Identifier{conn.Config().User}.Sanitize()
		return fmt.Errorf("login %s may not act as %s: grant %[2]s to %[1]s", login, role)
	default:
		return fmt.Errorf("set role %s: %w", role, err)
	}
}

// DescribeURL returns where a URL leads, without its password.
func DescribeURL(url string) string {
	config, err := pgtx.DirectConfig(url)
	if err != nil {
		return "(unreadable)"
	}
	return fmt.Sprintf("%s:%d/%s as %s", config.Host, config.Port, config.Database, config.User)
}

// checkMigrated checks as role, whatever else the login may do.
func checkMigrated(ctx context.Context, conn *pgx.Conn, role string) error {
	s, err := readState(ctx, conn, role)
	if err == nil && (s.Counted || s.HasRole) {
		err = actAs(ctx, conn, role)
	}
	switch {
	case err != nil:
		return err
	case !s.Counted && s.Filled:
		return errors.New("the database is migrated, but " + versionTable + ", which says how far, is missing: rename it " +
			"back, or restore it from a backup, before you migrate")
	case !s.Counted:
		return ErrNotMigrated
	case len(s.Ungranted) > 0:
		return fmt.Errorf("%s lacks %s: run `workers migrate repair`", role, strings.Join(s.Ungranted, ", "))
	}
	var applied int64
	newest := "select coalesce(max(version_id) filter (where is_applied), 0) from " + versionTable
	err = conn.QueryRow(ctx, newest).Scan(&applied)
	switch latest := LatestMigration(); {
	case err != nil:
		return fmt.Errorf("read %s: %w", versionTable, err)
	case applied < latest:
		return fmt.Errorf("the database is at migration %d and this build needs %d: run `workers migrate up`",
			applied, latest)
	}
	return nil
}

// state is what the catalogs say about the migrations of a database.
type state struct {
	Prepared, Counted, Filled bool // the version table's schema exists, the table itself, our tables
	Edition                   string
	HasRole                   bool     // the role exists
	Ungranted                 []string // what it lacks to read the version
}

// readState refuses a database of another edition. It reads the catalogs, because a name is not found without USAGE on
// its schema.
func readState(ctx context.Context, conn *pgx.Conn, role string) (s state, err error) {
	err = conn.QueryRow(ctx, `
with tables as (
  select n.nspname || '.' || c.relname as name, c.oid
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace)
select pg_catalog.to_regnamespace($2) is not null, exists (select from tables where name = $1),
  exists (select from tables where name = 'core.outbox'),
  coalesce(pg_catalog.substring(
    pg_catalog.obj_description(pg_catalog.to_regnamespace('core'), 'pg_namespace'), 'Edition ([0-9a-f]+)'), ''),
  exists (select from pg_catalog.pg_roles r where r.rolname = $3), array(
    select 'usage on schema ' || n.nspname from pg_catalog.pg_namespace n, pg_catalog.pg_roles r
    where n.nspname in ('core', $2) and r.rolname = $3 and not pg_catalog.has_schema_privilege(r.oid, n.oid, 'usage')
    union all
    select 'select on table ' || t.name from tables t, pg_catalog.pg_roles r
    where t.name = $1 and r.rolname = $3 and not pg_catalog.has_table_privilege(r.oid, t.oid, 'select'))`,
		versionTable, versionSchema, role).Scan(&s.Prepared, &s.Counted, &s.Filled, &s.Edition, &s.HasRole,
		&s.Ungranted)
	if err != nil {
		return s, fmt.Errorf("look for %s: %w", versionTable, err)
	}
	if s.Filled || s.Edition != "" {
		err = checkEdition(s.Edition)
	}
	return s, err
}

// ErrOtherEdition is returned for a database that other migrations than those of this build have made. Until the first
// release they are edited in place, so such a database has to be recreated.
var ErrOtherEdition = errors.New("drop and recreate the database, then run `workers migrate up`")

// checkEdition compares the edition that made a database with that of this build.
func checkEdition(have string) error {
	want, err := db.Edition(db.Migrations)
	if err != nil {
		return err
	}
	switch have {
	case want:
		return nil
	case "":
		return fmt.Errorf("schema core has no comment that names the edition of the migrations (if this build made it, "+
			"add the comment: comment on schema core is 'Edition %s';): otherwise %w", want, ErrOtherEdition)
	default:
		return fmt.Errorf("edition %s of the migrations made the database, and this build has edition %s: %w",
			have, want, ErrOtherEdition)
	}
}
