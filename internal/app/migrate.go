package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"spectral/db"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// Migrator runs the goose migrations on one database. Of several at once, on any hosts, one migrates: they queue for an
// advisory lock, which ends with the session. Close it.
type Migrator struct {
	config   *pgx.ConnConfig
	provider *goose.Provider
	log      *slog.Logger
}

// A migrator asks for the lock every period, so many times. Only our migrations use the lock.
const (
	lockID            = 3570158627934010221
	lockPeriodSeconds = 1
	lockPeriods       = 600
)

// A step gives up after its lock_timeout, because writers queue behind it while it waits for a lock. It is tried again,
// with doubling pauses, until lockTimeout is over.
const (
	lockTimeout  = 10 * time.Minute
	lockPause    = time.Second
	maxLockPause = 10 * time.Second
)

// NewMigrator checks that the database at url can be migrated.
func NewMigrator(ctx context.Context, url string, log *slog.Logger) (*Migrator, error) {
	files, err := fs.Sub(db.Migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return NewMigratorOf(ctx, url, files, log)
}

// NewMigratorOf is NewMigrator for the steps in files. Tests use it with small steps that wait or fail.
func NewMigratorOf(ctx context.Context, url string, files fs.FS, log *slog.Logger) (*Migrator, error) {
	config, err := pgtx.DirectConfig(url)
	if err != nil {
		return nil, settingsError("%s: %w", EnvDatabaseURL, err)
	}
	config.RuntimeParams["search_path"] = "pg_catalog" // public may be absent
	if err := prepareDatabase(ctx, config); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvDatabaseURL, err)
	}
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(lockID), lock.WithLockTimeout(lockPeriodSeconds, lockPeriods))
	if err != nil {
		return nil, err
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxIdleConns(-1) // a failed step without a transaction leaves its role and timeout on its connection
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, files,
		goose.WithTableName(versionTable), goose.WithSessionLocker(locker), goose.WithSlog(log))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read migrations: %w", err), pool.Close())
	}
	return &Migrator{config: config, provider: provider, log: log}, nil
}

// prepareDatabase checks that the database can be migrated, and that this edition made what is there. It creates the
// schema of the version table.
func prepareDatabase(ctx context.Context, config *pgx.ConnConfig) error {
	return withConnection(ctx, config, func(ctx context.Context, conn *pgx.Conn) error {
		if err := checkVersion(conn); err != nil {
			return err
		}
		s, err := readState(ctx, conn, "")
		if err != nil || s.Prepared || s.Filled {
			return err
		}
		_, err = conn.Exec(ctx, "create schema if not exists "+versionSchema)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if err == nil || ok && pg.Code == pgerrcode.UniqueViolation { // another migrator has just created it
			return nil
		}
		return withEventTriggers(ctx, conn.QueryRow, migrationError(fmt.Errorf("create schema %s: %w", versionSchema, err)))
	})
}

// Close closes the database connections.
func (m *Migrator) Close() error { return m.provider.Close() }

// Up migrates to the newest step and registers the contracts of this build. Generation zero registers them as the
// oldest build would.
func (m *Migrator) Up(ctx context.Context, generation events.Generation) (results []*goose.MigrationResult, err error) {
	err = m.retryLocked(ctx, func() error {
		applied, err := m.provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			applied = partial.Applied
		}
		results = append(results, applied...)
		return err
	})
	if err != nil {
		return results, m.failed(ctx, err)
	}
	contracts, err := Contracts()
	if err != nil {
		return results, err
	}
	return results, withConnection(ctx, m.config, func(ctx context.Context, conn *pgx.Conn) error {
		return publish.RegisterContracts(ctx, conn, generation, contracts)
	})
}

// retryLocked calls migrate, and again while a step does not get a lock.
func (m *Migrator) retryLocked(ctx context.Context, migrate func() error) error {
	waiting, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for pause := lockPause; ; pause = min(2*pause, maxLockPause) {
		err := migrate()
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != pgerrcode.LockNotAvailable {
			return err
		}
		m.log.WarnContext(ctx, "a change of the schema waits for another transaction: `workers doctor transactions "+
			"snapshots` names it", logReason, err.Error(), logDelay, pause.Milliseconds())
		select {
		case <-waiting.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// Compare is [Compare] on the database.
func (m *Migrator) Compare(ctx context.Context) (schema, privileges []Difference, err error) {
	err = withConnection(ctx, m.config, func(ctx context.Context, conn *pgx.Conn) error {
		schema, privileges, err = Compare(ctx, conn)
		return err
	})
	return schema, privileges, err
}

// Down undoes step, which must still be the newest (see [Migrator.Newest]). It refuses to lose data, and waits for
// locks as Up does.
func (m *Migrator) Down(ctx context.Context, step int64) (result *goose.MigrationResult, err error) {
	err = m.retryLocked(ctx, func() error {
		newest, err := m.provider.GetDBVersion(ctx)
		if err != nil {
			return err
		}
		if newest != step {
			return fmt.Errorf("nothing was done: the newest step is now %d, not %d", newest, step)
		}
		result, err = m.provider.Down(ctx)
		return err
	})
	return result, m.failed(ctx, err)
}

// failed returns err with what to do.
func (m *Migrator) failed(ctx context.Context, err error) error {
	err = migrationError(err)
	if _, answered := errors.AsType[*pgconn.PgError](err); answered {
		_ = withConnection(ctx, m.config, func(ctx context.Context, conn *pgx.Conn) error {
			err = withEventTriggers(ctx, conn.QueryRow, err)
			return nil
		})
	}
	return err
}

// Status lists every step and whether it is applied.
func (m *Migrator) Status(ctx context.Context) ([]*goose.MigrationStatus, error) {
	return m.provider.Status(ctx)
}

// Newest returns the newest step that is applied, nil for none. It fails if a newer build has applied a step that this
// build does not know.
func (m *Migrator) Newest(ctx context.Context) (*goose.Source, error) {
	applied, latest, err := m.provider.GetVersions(ctx)
	if err != nil {
		return nil, migrationError(err)
	}
	if applied > latest {
		return nil, fmt.Errorf("the database is at migration %d, and this build knows those up to %d: undo it with the "+
			"build that applied it", applied, latest)
	}
	for _, source := range m.provider.ListSources() {
		if source.Version == applied {
			return source, nil
		}
	}
	return nil, nil // the database has none
}

// alreadyThere are the codes of a step that finds what it should create.
var alreadyThere = []string{pgerrcode.DuplicateSchema, pgerrcode.DuplicateTable, pgerrcode.DuplicateFunction,
	pgerrcode.DuplicateObject}

// migrationError says which step failed and what to do; the steps before it stay applied.
func migrationError(err error) error {
	if err == nil {
		return nil
	}
	if partial, ok := errors.AsType[*goose.PartialError](err); ok && partial.Failed != nil {
		err = fmt.Errorf("migration %s failed, the ones before it stay applied: %w", partial.Failed.Source.Path, partial.Err)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(alreadyThere, pg.Code) {
			return fmt.Errorf("%w; if it was applied and only its record is lost: insert into %s (version_id, is_applied) "+
				"values (%d, true);", err, versionTable, partial.Failed.Source.Version)
		}
	}
	if strings.Contains(err.Error(), "missing zero version") { // goose has no type for it
		return fmt.Errorf("%s has lost its rows: if the database was migrated to step %d, insert into %[1]s (version_id, "+
			"is_applied) select v, true from generate_series(0, %[2]d) as v; otherwise drop and recreate the "+
			"database", versionTable, LatestMigration())
	}
	if strings.Contains(err.Error(), "missing (out-of-order) migration") { // goose has no type for it
		return fmt.Errorf("%w; a step before the newest one is not recorded as applied: run `workers doctor migrations`",
			err)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.InsufficientPrivilege {
		return fmt.Errorf("%w; migrate as a login that owns the database and has CREATEROLE (and, on PostgreSQL 15, "+
			"INHERIT)", err)
	}
	return err
}

// withEventTriggers adds to err, if a function raised it, the event triggers that may have called the function.
func withEventTriggers(ctx context.Context, query func(context.Context, string, ...any) pgx.Row, err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Where == "" {
		return err
	}
	var found *string
	if query(ctx, `select pg_catalog.string_agg(pg_catalog.format('%I of %s', evtname, evtowner::regrole), ', ')
from pg_catalog.pg_event_trigger where evtenabled <> 'D'`).Scan(&found) != nil || found == nil {
		return err
	}
	return fmt.Errorf("%w; if an event trigger refused it, ask its owner to let this login migrate: %s", err, *found)
}

// Migrations returns the numbers of this build's steps, the newest last.
func Migrations() (steps []int64) {
	names, _ := fs.Glob(db.Migrations, "migrations/*.sql") // sorted
	for _, name := range names {
		if step, err := goose.NumericComponent(name); err == nil {
			steps = append(steps, step)
		}
	}
	return steps
}

// LatestMigration returns the number of the newest step of this build.
func LatestMigration() int64 { return slices.Max(Migrations()) }
