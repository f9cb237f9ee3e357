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

// Migrator runs the goose migrations on one database. Several at once, on any number of hosts,
// queue up on an advisory lock that goes with the session. Close it.
type Migrator struct {
	config   *pgx.ConnConfig
	provider *goose.Provider
	log      *slog.Logger
}

// A migrator waits this long for its turn: each waiter asks again every period. The lock is of our migrations alone.
const (
	lockID            = 3570158627934010221
	lockPeriodSeconds = 1
	lockPeriods       = 600
)

// A step gives up a lock that it does not get within its lock_timeout: whoever writes to the table
// queues behind it. It is tried again until lockPatience is over.
const (
	lockPatience   = 10 * time.Minute
	lockPause      = time.Second
	lockPausesLong = 10 * time.Second
)

// NewMigrator checks that the database at url can be migrated.
func NewMigrator(ctx context.Context, url string, log *slog.Logger) (*Migrator, error) {
	files, err := fs.Sub(db.Migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return NewMigratorOf(ctx, url, files, log)
}

// NewMigratorOf is NewMigrator for the steps in files: tests try with a few small ones what happens while steps wait or fail.
func NewMigratorOf(ctx context.Context, url string, files fs.FS, log *slog.Logger) (*Migrator, error) {
	config, err := pgtx.DirectConfig(url)
	if err != nil {
		return nil, settingsError("%s: %w", EnvDatabaseURL, oneLine(err))
	}
	config.RuntimeParams["search_path"] = "pg_catalog" // public may be absent, or not ours
	if err := prepareDatabase(ctx, config); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvDatabaseURL, err)
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(lockPeriodSeconds, lockPeriods))
	if err != nil {
		return nil, err
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxIdleConns(-1) // a step without a transaction that fails leaves its role and timeout on its connection
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, files,
		goose.WithTableName(versionTable), goose.WithSessionLocker(locker), goose.WithSlog(log))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read migrations: %w", err), pool.Close())
	}
	return &Migrator{config: config, provider: provider, log: log}, nil
}

// prepareDatabase checks that the database can be migrated, and that it is of this edition if it has been. It makes the schema
// that goose keeps its versions in.
func prepareDatabase(ctx context.Context, config *pgx.ConnConfig) error {
	return withConnection(ctx, config, func(ctx context.Context, conn *pgx.Conn) error {
		if err := checkVersion(conn); err != nil {
			return err
		}
		var prepared, filled bool
		var edition string
		err := conn.QueryRow(ctx, `select to_regnamespace($1) is not null, to_regclass('core.outbox') is not null,
			coalesce(substring(obj_description(to_regnamespace('core'), 'pg_namespace'), 'Edition ([0-9a-f]+)'), '')`, versionSchema).Scan(&prepared, &filled, &edition)
		if err != nil {
			return fmt.Errorf("look for schema %s: %w", versionSchema, oneLine(err))
		}
		if filled || edition != "" {
			return checkEdition(edition)
		}
		if prepared {
			return nil
		}
		_, err = conn.Exec(ctx, "create schema if not exists "+versionSchema)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.UniqueViolation { // another migrator made it
			return nil
		}
		if err != nil {
			return migrationError(fmt.Errorf("create schema %s: %w", versionSchema, oneLine(err)))
		}
		return nil
	})
}

// Close releases the database.
func (m *Migrator) Close() error { return m.provider.Close() }

// Up migrates to the newest step and registers the contracts of this build. Generation may be
// zero: the types are then registered as if by the oldest build.
func (m *Migrator) Up(ctx context.Context, generation events.Generation) (results []*goose.MigrationResult, err error) {
	err = m.inTurns(ctx, func() error {
		applied, err := m.provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			applied = partial.Applied
		}
		results = append(results, applied...)
		return err
	})
	if err != nil {
		return results, migrationError(err)
	}
	contracts, err := Contracts()
	if err != nil {
		return results, err
	}
	return results, withConnection(ctx, m.config, func(ctx context.Context, conn *pgx.Conn) error {
		return publish.RegisterContracts(ctx, conn, generation, contracts)
	})
}

// inTurns migrates, and again as long as a step does not get a lock: it waits in short turns.
func (m *Migrator) inTurns(ctx context.Context, migrate func() error) error {
	patience, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for pause := lockPause; ; pause = min(2*pause, lockPausesLong) {
		err := migrate()
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != pgerrcode.LockNotAvailable {
			return err
		}
		m.log.WarnContext(ctx, "a migration waits for a lock that a long transaction holds, which `workers doctor snapshots` names",
			logReason, oneLine(err).Error(), logDelay, pause.Milliseconds())
		select {
		case <-patience.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// ComparePrivileges compares who may do what with db/privileges.txt.
func (m *Migrator) ComparePrivileges(ctx context.Context) (missing, unexpected []string, err error) {
	err = withConnection(ctx, m.config, func(ctx context.Context, conn *pgx.Conn) error {
		missing, unexpected, err = ComparePrivileges(ctx, conn)
		return err
	})
	return missing, unexpected, err
}

// Down undoes step, the newest (see [Migrator.Newest]), or none if another is the newest by then; it refuses one that would lose data. It
// waits for locks as Up does.
func (m *Migrator) Down(ctx context.Context, step int64) (result *goose.MigrationResult, err error) {
	err = m.inTurns(ctx, func() error {
		newest, err := m.provider.GetDBVersion(ctx)
		if err != nil {
			return err
		}
		if newest != step {
			return fmt.Errorf("nothing was done: the newest step is not %d any more, but %d", step, newest)
		}
		result, err = m.provider.Down(ctx)
		return err
	})
	if err != nil {
		return nil, migrationError(err)
	}
	return result, nil
}

// Status lists every step and whether it is applied.
func (m *Migrator) Status(ctx context.Context) ([]*goose.MigrationStatus, error) {
	return m.provider.Status(ctx)
}

// Newest is the newest step that is applied; nil: none. Its error may be that a newer build has applied one that this build does not know.
func (m *Migrator) Newest(ctx context.Context) (*goose.Source, error) {
	applied, latest, err := m.provider.GetVersions(ctx)
	if err != nil {
		return nil, migrationError(err)
	}
	if applied > latest {
		return nil, fmt.Errorf("the database is at migration %d, and this build knows those up to %d: undo it with the build that applied it", applied, latest)
	}
	for _, source := range m.provider.ListSources() {
		if source.Version == applied {
			return source, nil
		}
	}
	return nil, nil // the database has none
}

// alreadyThere are the codes of an object that a step makes and finds.
var alreadyThere = []string{pgerrcode.DuplicateSchema, pgerrcode.DuplicateTable, pgerrcode.DuplicateFunction, pgerrcode.DuplicateObject}

// migrationError says which step failed and that the earlier ones stand.
func migrationError(err error) error {
	if partial, ok := errors.AsType[*goose.PartialError](err); ok && partial.Failed != nil {
		err = fmt.Errorf("migration %s failed, the ones before it stand: %w", partial.Failed.Source.Path, partial.Err)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(alreadyThere, pg.Code) {
			return fmt.Errorf("%w; if it was applied and only its record is lost: insert into %s (version_id, is_applied) values (%d, true);",
				err, versionTable, partial.Failed.Source.Version)
		}
	}
	if strings.Contains(err.Error(), "missing zero version") { // goose has no type for it
		return fmt.Errorf("%s has lost its rows: if the database was migrated to step %d, insert into %[1]s (version_id, is_applied) "+
			"select v, true from generate_series(0, %[2]d) as v; otherwise drop and recreate the database", versionTable, LatestMigration())
	}
	if strings.Contains(err.Error(), "missing (out-of-order) migration") { // goose has no type for it
		return fmt.Errorf("%w; a step before the newest one is not recorded as applied: see `workers doctor migrations`", oneLine(err))
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.InsufficientPrivilege {
		return fmt.Errorf("%w; migrate as a login that owns the database and has CREATEROLE (and, on PostgreSQL 15, INHERIT)", err)
	}
	return err
}

// Migrations are the numbers of this build's steps, the newest last.
func Migrations() (steps []int64) {
	names, _ := fs.Glob(db.Migrations, "migrations/*.sql") // sorted
	for _, name := range names {
		if step, err := goose.NumericComponent(name); err == nil {
			steps = append(steps, step)
		}
	}
	return steps
}

// LatestMigration is the number of the newest step of this build.
func LatestMigration() int64 { return slices.Max(Migrations()) }
