package sql_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"

	"spectral/db"
	"spectral/internal/app"
	"spectral/tests/pgtest"
)

// steps are the migrations of the product, and the given ones.
func steps(t testing.TB, more map[string]string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	names, err := fs.Glob(db.Migrations, "migrations/*.sql")
	must(t, err)
	for _, name := range names {
		content, err := fs.ReadFile(db.Migrations, name)
		must(t, err)
		files[filepath.Base(name)] = &fstest.MapFile{Data: content}
	}
	for name, text := range more {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

// Steps as later versions will have them.
const (
	column = `-- +goose Up
set local lock_timeout = '500ms';
alter table core.outbox add column more integer;
-- +goose Down
set local lock_timeout = '500ms';
alter table core.outbox drop column more;
`
	hasColumn = "select exists (select from pg_attribute where attrelid = 'core.outbox'::regclass and attname = 'more')"
)

// lockWaits says whether a session of this database waits for a lock on the relation.
func lockWaits(relation string) string {
	return "select exists (select from pg_locks where database = (select oid from pg_database where datname = " +
		"current_database()) and relation = '" + relation + "'::regclass and not granted)"
}

// waitForTurn waits until a migrator has waited for core.outbox, and its turn is over.
func waitForTurn(t *testing.T, watcher querier) {
	t.Helper()
	waitFor(t, watcher, lockWaits("core.outbox"))
	waitFor(t, watcher, "select not ("+strings.TrimPrefix(lockWaits("core.outbox"), "select ")+")")
}

func migrator(t *testing.T, at string, files fs.FS, log *slog.Logger) *app.Migrator {
	t.Helper()
	m, err := app.NewMigratorOf(deadline(t), at, files, log)
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// inBackground migrates while the test goes on, and sends how that ended.
func inBackground(t *testing.T, m *app.Migrator) <-chan error {
	t.Helper()
	done, ctx := make(chan error, 1), deadline(t)
	go func() {
		_, err := m.Up(ctx, pgtest.Generation)
		done <- err
	}()
	return done
}

func undo(ctx context.Context, m *app.Migrator) (*goose.MigrationResult, error) {
	newest, err := m.Newest(ctx)
	if err != nil {
		return nil, err
	}
	return m.Down(ctx, newest.Version)
}

// rebuilt are the tables whose rows come back by themselves, or are about running processes only.
var rebuilt = map[string]bool{
	"core.event_types": true, "core.workers": true, "core.claim_journal": true, "core.delivery_latencies": true,
	"core.event_stats": true, // statistics
	"core.relay":       true, // while it matters there are events
}

const changePolicy = "update core.retention_policies set active_ttl_days = 400 where subject = 'operator_action'"

// keeper is SQL that leaves a row in a table: of nulls and of zeros, without what would refuse it.
func keeper(t *testing.T, q querier, table string) string {
	t.Helper()
	switch table { // those of which migrating writes some
	case "core.retention_policies":
		return changePolicy
	case "core.publisher_sources":
		return "insert into core.publisher_sources values ('my_login', 'worlds')"
	}
	return value[string](t, q, `select concat('set local session_replication_role = replica;',
		(select string_agg(format('alter table %s drop constraint %I cascade;', conrelid::regclass, conname), ''
			order by contype desc)
			from pg_constraint where conrelid = c.oid and contype in ('c', 'f', 'p')),
		(select string_agg(format('alter table %s alter column %I drop not null;', c.oid::regclass, attname), '')
			from pg_attribute where attrelid = c.oid and attnum > 0 and attnotnull and not attisdropped and attidentity = ''),
		format('insert into %s default values', c.oid::regclass)) from pg_class c where c.oid = $1::text::regclass`, table)
}

var createsTable = regexp.MustCompile(`(?m)^create table (\S+) \(`)

// Each step down refuses while a table that it made has rows to lose. On an empty database all steps are undone and
// leave nothing behind.
func TestDownLosesNothing(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	conn := pgtest.Conn(t, at)
	exec(t, conn, "delete from core.deployments") // what migrating itself registered
	files := steps(t, nil)
	m := migrator(t, at, files, slog.New(slog.DiscardHandler))
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(files))) {
		up, down, _ := strings.Cut(string(files[name].Data), "-- +goose Down\n")
		for _, match := range createsTable.FindAllStringSubmatch(up, -1) {
			table := match[1]
			if rebuilt[table] {
				continue
			}
			tx := begin(t, conn)
			exec(t, tx, keeper(t, tx, table))
			if _, err := tx.Exec(deadline(t), down); err == nil || !strings.Contains(err.Error(), table+" ") {
				t.Fatalf("%s went down with a row of %s: %v; its Down must raise an exception while the table has rows",
					name, table, err)
			}
			finish(t, tx)
		}
		if name == "00009_core_retention.sql" { // the migrator passes the refusal on and undoes nothing
			exec(t, conn, changePolicy)
			if _, err := undo(deadline(t), m); err == nil || !strings.Contains(err.Error(), "core.retention_policies ") {
				t.Errorf("the migrator goes down with a changed policy: %v", err)
			}
			exec(t, conn, "update core.retention_policies set active_ttl_days = 365 where subject = 'operator_action'")
		}
		if undone, err := undo(deadline(t), m); err != nil || undone.Source.Path != name {
			t.Fatalf("undo %s: %+v, %v", name, undone, err)
		}
	}
	wantNothing(t, at)
	if left := values[string](t, conn, "select defaclacl::text from pg_default_acl"); len(left) > 0 {
		t.Errorf("going down leaves default privileges %v", left)
	}
}

func wantNothing(t *testing.T, at string) {
	t.Helper()
	if left := dump(t, at); left != "" {
		t.Errorf("objects are left:\n%s", left)
	}
}

// Until the first release, migrations are edited in place: a database of other ones is refused, by migrators and
// workers.
func TestAnotherEditionIsRefused(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	exec(t, pgtest.Conn(t, at), "comment on schema core is 'Edition 0123456789abcdef'")
	login := pgtest.Login(t, at, "spectral_worker")
	_, err := app.NewMigrator(deadline(t), at, slog.New(slog.DiscardHandler))
	for _, err := range []error{err, app.CheckDatabase(deadline(t), &app.Settings{DatabaseURL: login, PoolURL: login})} {
		if !errors.Is(err, app.ErrOtherEdition) || !strings.Contains(err.Error(), "0123456789abcdef") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("another edition: %v", err)
		}
	}
}

// waitFor asks until the answer is yes.
func waitFor(t *testing.T, q querier, question string) {
	t.Helper()
	var err error
	ctx := deadline(t)
	yes := pgtest.Eventually(testTimeout, func() (yes bool) {
		err = q.QueryRow(ctx, question).Scan(&yes)
		return yes || err != nil
	})
	if err != nil || !yes {
		t.Errorf("%s: %v", question, err)
	}
}

// A step that does not get its lock must not keep publishers waiting behind it: it gives up quickly, and is tried again
// until a long transaction has ended.
func TestAMigrationWaitsWithoutBlockingPublishers(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	long := begin(t, pgtest.Conn(t, at))
	exec(t, long, "select count(*) from core.outbox")
	var log bytes.Buffer // read when it is done
	migrated := inBackground(t, migrator(t, at, steps(t, map[string]string{"90001_core_column.sql": column}),
		slog.New(slog.NewTextHandler(&log, nil))))
	publisher, watcher := pgtest.Conn(t, at), pgtest.Conn(t, at)
	exec(t, publisher, "set statement_timeout = '2s'")
	waitFor(t, watcher, lockWaits("core.outbox"))
	exec(t, publisher, filled("select core.outbox_publish('{card}', 'worlds', '{\"card_id\": \"c\", \"version\": 1, "+
		"\"title\": \"t\"}')"))
	waitFor(t, watcher, "select not ("+strings.TrimPrefix(lockWaits("core.outbox"), "select ")+")") // its turn is over
	finish(t, long)
	must(t, <-migrated)
	if !strings.Contains(log.String(), "workers doctor transactions snapshots") {
		t.Errorf("the log of the waiting migrator says %q", log.String())
	}
	if !value[bool](t, watcher, hasColumn) {
		t.Error("the column is not there")
	}
}

// The record of what is applied may be lost: the refusal has the statement that restores it.
func TestALostRecordOfMigrationsCanBeRestored(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"version_id = (select max(version_id) from spectral_goose.goose_db_version)", "true"} {
		at := pgtest.New(t)
		conn := pgtest.Conn(t, at)
		exec(t, conn, "delete from spectral_goose.goose_db_version where "+lost)
		err := migrateUp(deadline(t), at)
		if err == nil {
			t.Fatalf("where %s: migrated", lost)
		}
		_, fix, _ := strings.Cut(err.Error(), "insert into ")
		fix, _, _ = strings.Cut(fix, ";")
		exec(t, conn, "insert into "+fix)
		if err := migrateUp(deadline(t), at); err != nil {
			t.Errorf("where %s: %v", lost, err)
		}
	}
}

// What an event trigger refuses is named, with who can allow it.
func TestEventTriggersThatRefuseAreNamed(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]string{"create schema": "", "up": "when tag in ('CREATE TABLE')", "repair": ""} {
		at := pgtest.NewEmpty(t)
		conn := pgtest.Conn(t, at)
		if name == "repair" {
			must(t, migrateUp(deadline(t), at))
		}
		exec(t, conn, `create schema guard; create function guard.no_ddl() returns event_trigger language plpgsql as $$
			begin raise exception 'ask ops' using errcode = '42501'; end $$;
			alter table if exists core.outbox disable trigger outbox_notify;
			create event trigger off on ddl_command_start execute function guard.no_ddl(); alter event trigger off disable;
			create event trigger guard on ddl_command_start `+when+` execute function guard.no_ddl()`)
		err := migrateUp(deadline(t), at)
		if name == "repair" {
			m, opened := app.NewMigrator(deadline(t), at, slog.New(slog.DiscardHandler))
			must(t, opened)
			_, left, repairErr := m.Repair(deadline(t))
			must(t, errors.Join(repairErr, m.Close()))
			err = errors.New(left[0].Do)
		}
		if err == nil || !strings.Contains(err.Error(), "ask ops") ||
			!strings.HasSuffix(err.Error(), "ask its owner to let this login migrate: guard of postgres") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A repair takes the lock that migrators hold.
func TestARepairWaitsForMigrators(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	m, err := app.NewMigrator(deadline(t), at, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	const key = "(3570158627934010221)" // of the session lock
	migrating := pgtest.Conn(t, at)
	exec(t, migrating, "select pg_advisory_lock"+key)
	repaired := make(chan error, 1)
	go func() {
		_, _, err := m.Repair(deadline(t))
		repaired <- err
	}()
	waitFor(t, pgtest.Conn(t, at), "select exists (select from pg_locks where locktype = 'advisory' and not granted "+
		"and database = (select oid from pg_database where datname = current_database()))")
	exec(t, migrating, "select pg_advisory_unlock"+key)
	must(t, <-repaired)
}

// How long a login's statements may take by default is not how long a worker's first look at the database may.
func TestTheFirstLookTakesItsTime(t *testing.T) {
	t.Parallel()
	ctx, at := deadline(t), pgtest.New(t)
	admin, holder := pgtest.Conn(t, at), pgtest.Conn(t, at)
	worker := pgtest.Login(t, at, "spectral_worker", "spectral_operator")
	login := pgtest.Conn(t, worker).Config().User
	exec(t, admin, "alter role "+login+" set statement_timeout = '100ms'")
	exec(t, holder, "begin; lock table spectral_goose.goose_db_version")
	looked := make(chan error, 2)
	go func() { looked <- app.CheckDatabase(ctx, &app.Settings{DatabaseURL: worker, PoolURL: worker}) }()
	go func() { looked <- app.CheckOperator(ctx, worker) }()
	waitFor(t, admin, `select count(*) = 2 from pg_locks where relation = 'spectral_goose.goose_db_version'::regclass
		and database = (select oid from pg_database where datname = current_database())
		and not granted and waitstart < clock_timestamp() - interval '150 ms'`)
	exec(t, holder, "commit")
	if err := errors.Join(<-looked, <-looked); err != nil {
		t.Error(err)
	}
}

// dump returns the schema as db/schema.txt has it, below its head.
func dump(t testing.TB, at string) string {
	t.Helper()
	objects, _, err := app.ReadCatalogs(deadline(t), pgtest.Conn(t, at))
	must(t, err)
	var text strings.Builder
	for _, o := range objects {
		text.WriteString(o.Subject + ": " + o.Definition + "\n")
	}
	return text.String()
}

// wantSchema compares a database with one that was migrated without disturbance.
func wantSchema(t testing.TB, at string) {
	t.Helper()
	if want, have := dump(t, pgtest.New(t)), dump(t, at); want != have {
		t.Errorf("the schema is not that of a migrated database:\n%s", diff(want, have))
	}
}

// TestSchema compares with db/schema.txt; with -update it writes it, on PostgreSQL 15, whose expressions have the
// parentheses that the file has.
func TestSchema(t *testing.T) {
	at := pgtest.New(t)
	if *update {
		rewrite(t, "schema.txt", db.Schema, dump(t, at))
		return
	}
	if schema, _, err := app.Compare(deadline(t), pgtest.Conn(t, at)); err != nil || len(schema) > 0 {
		t.Errorf("the schema is not that of db/schema.txt; if it is meant to change: `make generate`, "+
			"and read the diff\n%v, error %v", schema, err)
	}
}

// What a database has set for its sessions does not change how its catalogs are read.
func TestCatalogsReadTheSameEverywhere(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	name := value[string](t, admin, "select quote_ident(current_database())")
	for _, settings := range []string{
		`timezone = 'Europe/Berlin'; datestyle = 'German'; intervalstyle = 'iso_8601'; quote_all_identifiers = on;
			standard_conforming_strings = off; bytea_output = 'escape'; extra_float_digits = -15; search_path = core, platform`,
		`timezone = 'Asia/Kolkata'; datestyle = 'SQL, DMY'; default_transaction_isolation = 'serializable';
			default_transaction_read_only = on`,
	} {
		for setting := range strings.SplitSeq(settings, ";") {
			exec(t, admin, "alter database "+name+" set "+setting)
		}
		conn := pgtest.Conn(t, at)
		exec(t, admin, "alter database "+name+" reset all")
		schema, privileges, err := app.Compare(deadline(t), conn)
		if err != nil || len(schema)+len(privileges) > 0 {
			t.Errorf("with %s: %v, %v, error %v", settings, schema, privileges, err)
		}
	}
}

// In Turkish the small letter of I is not i, and in the others letters are not in the order of their codes.
func TestDatabasesOfEveryLocaleAreTheSame(t *testing.T) {
	t.Parallel()
	for _, locale := range []string{"tr-TR", "et-EE", "en-US-u-kn-true-ks-level1-kf-upper"} {
		at := pgtest.NewEmptyWith(t, "template template0 encoding 'UTF8' locale 'C' locale_provider icu icu_locale '"+
			locale+"'")
		m := migrator(t, at, steps(t, nil), slog.New(slog.DiscardHandler))
		if _, err := m.Up(deadline(t), pgtest.Generation); err != nil {
			t.Fatalf("%s: %v", locale, err)
		}
		schema, privileges, err := app.Compare(deadline(t), pgtest.Conn(t, at))
		if err != nil || len(schema)+len(privileges) > 0 {
			t.Errorf("%s: %v, %v, error %v", locale, schema, privileges, err)
		}
	}
}

// Logical replication needs a primary key, and a publication for all tables refuses updates of tables without one
// (55000).
func TestEveryTableHasAPrimaryKey(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	const without = `select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where c.relkind in ('r', 'p') and (n.nspowner = 'spectral_owner'::regrole or n.nspname = 'spectral_goose')
		  and not exists (select from pg_constraint k where k.conrelid = c.oid and k.contype = 'p')`
	if tables := values[string](t, conn, without); len(tables) > 0 {
		t.Errorf("tables without a primary key: %v; where the natural key holds a null, add an identity column", tables)
	}
}

// The outbox will be partitioned by occurred_at: id alone is never a key, and nothing refers to it.
func TestOutboxCanBePartitioned(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	if faults := values[string](t, conn, `
select 'foreign key ' || conname from pg_constraint where contype = 'f' and confrelid = 'core.outbox'::regclass
union all
select 'unique index ' || indexrelid::regclass from pg_index i
where indrelid = 'core.outbox'::regclass and indisunique
  and not exists (select from pg_attribute a where a.attrelid = i.indrelid and a.attname = 'occurred_at'
  	and a.attnum = any (i.indkey))
order by 1`); len(faults) > 0 {
		t.Errorf("core.outbox could not be partitioned: %v", faults)
	}
	names, err := filepath.Glob("../../db/*/*.sql")
	if err != nil || len(names) < 10 {
		t.Fatalf("%d files of SQL in db: %v", len(names), err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		must(t, err)
		if found := onIDAlone.Find(content); found != nil {
			t.Errorf("%s relies on the id of an event alone: %s", name, found)
		}
	}
}

var onIDAlone = regexp.MustCompile(`(?i)on\s+conflict\s*\(\s*id\s*\)|references\s+core\s*\.\s*outbox\b`)
