package database_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"

	"spectral/db"
	"spectral/internal/app"
	"spectral/tests/pgtest"
)

const goldenSchema = "../../db/schema.txt"

func schemaOf(t testing.TB, at string) []app.SchemaObject {
	t.Helper()
	objects, err := app.ReadSchema(deadline(t), pgtest.Conn(t, at))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// dump writes out our schemas.
func dump(t testing.TB, at string) string {
	t.Helper()
	return app.WriteSchema(schemaOf(t, at))
}

// wantSchema compares a database with one that was migrated without disturbance.
func wantSchema(t testing.TB, at string) {
	t.Helper()
	if want, have := dump(t, pgtest.New(t)), dump(t, at); want != have {
		t.Errorf("the schema is not that of a migrated database:\n%s", diff(want, have))
	}
}

// generatedBy is the version of PostgreSQL that writes db/schema.txt; the others write some of it otherwise.
const generatedBy = 15

func TestSchema(t *testing.T) {
	have := schemaOf(t, pgtest.New(t))
	if parsed := app.ParseSchema(app.WriteSchema(have)); !slices.Equal(parsed, have) {
		t.Error("what is read is not what was written")
	}
	if *update {
		if err := os.WriteFile(goldenSchema, []byte(app.WriteSchema(have)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	written := app.WriteSchema
	if major := value[int](t, pgtest.Conn(t, pgtest.New(t)), "select current_setting('server_version_num')::int / 10000"); major != generatedBy {
		written = func(objects []app.SchemaObject) string { return app.WriteSchema(app.SameEverywhere(objects)) }
	}
	if want, have := written(app.ParseSchema(db.Schema)), written(have); want != have {
		t.Errorf("the schema is not that of db/schema.txt; if it is meant to change: `make generate`, and read the diff\n%s", diff(want, have))
	}
}

// What a database has set for its sessions does not change how its catalogs are read.
func TestCatalogsReadTheSameEverywhere(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	name := value[string](t, admin, "select quote_ident(current_database())")
	for _, setting := range []string{
		"timezone = 'Europe/Berlin'", "timezone = 'Asia/Kolkata'", "datestyle = 'German'", "datestyle = 'SQL, DMY'", "intervalstyle = 'iso_8601'",
		"quote_all_identifiers = on", "standard_conforming_strings = off", "bytea_output = 'escape'", "extra_float_digits = -15",
		"search_path = core, platform", "default_transaction_isolation = 'serializable'", "default_transaction_read_only = on",
	} {
		exec(t, admin, "alter database "+name+" set "+setting)
		conn := pgtest.Conn(t, at)
		exec(t, admin, "alter database "+name+" reset all")
		schema, err := app.CompareSchema(deadline(t), conn)
		if err != nil || len(schema.Missing)+len(schema.Altered)+len(schema.Unexpected) > 0 {
			t.Errorf("with %s: %+v, error %v", setting, schema, err)
		}
		missing, unexpected, err := app.ComparePrivileges(deadline(t), conn)
		if err != nil || len(missing)+len(unexpected) > 0 {
			t.Errorf("with %s missing %v, unexpected %v, error %v", setting, missing, unexpected, err)
		}
	}
}

// The outbox will be partitioned by occurred_at: id alone is never a key, and nothing refers to it.
func TestOutboxCanBePartitioned(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	faults := func() []string {
		return values[string](t, conn, `
select 'foreign key ' || conname from pg_constraint where contype = 'f' and confrelid = 'core.outbox'::regclass
union all
select 'unique index ' || indexrelid::regclass from pg_index i
where indrelid = 'core.outbox'::regclass and indisunique
  and not exists (select from pg_attribute a where a.attrelid = i.indrelid and a.attname = 'occurred_at' and a.attnum = any (i.indkey))
order by 1`)
	}
	if have := faults(); len(have) > 0 {
		t.Errorf("core.outbox could not be partitioned: %v", have)
	}
	exec(t, conn, "create unique index broken on core.outbox (id); create table core.referring (id uuid references core.outbox (id))")
	if have := faults(); len(have) != 2 {
		t.Errorf("a foreign key and a unique index on id are seen as %v", have)
	}
	for _, name := range sources(t) {
		content, err := fs.ReadFile(os.DirFS("../../db"), name)
		if err != nil {
			t.Fatal(err)
		}
		if found := onIDAlone.Find(content); found != nil {
			t.Errorf("db/%s relies on the id of an event alone: %s", name, found)
		}
		if found := outboxByCtid(string(content)); found != "" {
			t.Errorf("db/%s finds events by ctid, which each partition has for itself:%s", name, found)
		}
	}
	if outboxByCtid("select 1; delete -- comment;\nfrom core.outbox o where o.ctid = any (x); select 2") == "" ||
		outboxByCtid("select ctid from core.outbox_x; -- core.outbox\nselect ctid from core.y") != "" {
		t.Error("ctid on the outbox is seen where it is not, or not where it is")
	}
	if !onIDAlone.MatchString("ON  conflict ( id ) do nothing") || !onIDAlone.MatchString("references\ncore.outbox (id)") {
		t.Error("the pattern finds nothing")
	}
}

var onIDAlone = regexp.MustCompile(`(?i)on\s+conflict\s*\(\s*id\s*\)|references\s+core\s*\.\s*outbox\b`)

var comment = regexp.MustCompile(`--[^\n]*`)

// outboxByCtid is the first statement that has both in it.
func outboxByCtid(sql string) string {
	both := []*regexp.Regexp{regexp.MustCompile(`(?i)\bcore\s*\.\s*outbox\b`), regexp.MustCompile(`(?i)\bctid\b`)}
	for statement := range strings.SplitSeq(comment.ReplaceAllString(sql, ""), ";") {
		if both[0].MatchString(statement) && both[1].MatchString(statement) {
			return statement
		}
	}
	return ""
}

func sources(t testing.TB) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS("../../db"), ".", func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".sql") {
			names = append(names, name)
		}
		return err
	})
	if err != nil || len(names) < 10 {
		t.Fatalf("%d files of SQL in db: %v", len(names), err)
	}
	return names
}

// down goes back step by step, to nothing.
func down(t *testing.T, migrator *app.Migrator) error {
	t.Helper()
	for range len(migrations(t)) {
		if _, err := undo(deadline(t), migrator); err != nil {
			return err
		}
	}
	return nil
}

// undo undoes the newest step.
func undo(ctx context.Context, migrator *app.Migrator) (*goose.MigrationResult, error) {
	newest, err := migrator.Newest(ctx)
	if err != nil {
		return nil, err
	}
	return migrator.Down(ctx, newest.Version)
}

func migrations(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func newMigrator(t *testing.T, at string) *app.Migrator {
	t.Helper()
	migrator, err := app.NewMigrator(deadline(t), at, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = migrator.Close() })
	return migrator
}

func TestDownAndUpAgain(t *testing.T) {
	t.Parallel()
	at := pgtest.NewEmpty(t)
	migrator := newMigrator(t, at)
	up := func() {
		t.Helper()
		if err := migrateUp(deadline(t), at); err != nil {
			t.Fatal(err)
		}
		wantSchema(t, at)
	}
	up()
	conn := pgtest.Conn(t, at)
	exec(t, conn, "delete from core.deployments") // what migrating itself registered
	if err := down(t, migrator); err != nil {
		t.Fatal(err)
	}
	if left := dump(t, at); left != "" {
		t.Errorf("going down leaves\n%s", left)
	}
	if left := values[string](t, conn, "select defaclacl::text from pg_default_acl"); len(left) > 0 {
		t.Errorf("going down leaves default privileges %v", left)
	}
	up()
	missing, unexpected, err := app.ComparePrivileges(deadline(t), conn)
	if err != nil || len(missing)+len(unexpected) > 0 {
		t.Errorf("after going down and up again, missing %v, unexpected %v, error %v", missing, unexpected, err)
	}
}

// rebuilt are the tables whose rows come back by themselves, or are about running processes only;
// every other one must be in keepers.
var rebuilt = []string{
	"core.event_types", "core.workers", "core.claim_journal", "core.reaped_leases", "core.ack_latencies",
	"core.retention_runs", "core.retention_progress", "core.leads",
}

// keepers insert a row into each table whose rows a step down may not lose.
var keepers = map[string]string{
	"core.deployments":         "insert into core.deployments (generation) values (7)",
	"core.publisher_sources":   "insert into core.publisher_sources values ('my_login', 'worlds')",
	"core.operator_actions":    "insert into core.operator_actions (action, acted_by) values ('replay', 'somebody')",
	"core.retention_policies":  "update core.retention_policies set active_ttl_days = 400 where subject = 'operator_action'",
	"core.paused_types":        "insert into core.paused_types (event_type, generation, paused_by) values ('a.b', 1, 'somebody')",
	"core.outbox":              "select core.generation_announce(1); select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{\"card_id\": \"c\", \"version\": 1, \"title\": \"t\"}')",
	"core.event_handled":       "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) values ('a.b', 'k', gen_random_uuid(), 'a.b', 'workspace')",
	"worlds.world_model_cards": "insert into worlds.world_model_cards (card_id, version, card, published_at) values ('c', 1, '{}', now())",
	"platform.system_cards":    "insert into platform.system_cards (card_id, version, title, snapshot) values ('c', 1, 't', '{}')",
	"platform.decisions": `insert into platform.decisions (decision_id, rule_id, outcome, decided_by, decided_at, recorded_at)
		values (gen_random_uuid(), 'r', 'followed', 'somebody', now(), now())`,
	"platform.override_patterns": `insert into platform.override_patterns (rule_id, followed, overridden, first_decided_at, last_decided_at)
		values ('r', 1, 0, now(), now())`,
	"platform.override_reasons": `insert into platform.override_reasons (rule_id, reason, overridden, first_decided_at, last_decided_at)
		values ('r', 'why', 1, now(), now())`,
	"platform.override_pattern_decisions": "insert into platform.override_pattern_decisions (decision_id) values (gen_random_uuid())",
	"worlds.rule_health_decisions":        "insert into worlds.rule_health_decisions (decision_id) values (gen_random_uuid())",
	"worlds.rule_health":                  "insert into worlds.rule_health (rule_id, followed, overridden, state, last_decided_at) values ('r', 1, 0, 'unrated', now())",
	"worlds.scans":                        "insert into worlds.scans (scan_id, subject, state, started_at) values (gen_random_uuid(), 'card:c', 'running', now())",
	"worlds.scan_index": `insert into worlds.scan_index (subject, scan_id, finished_at, finding_kinds, finding_count)
		values ('card:c', gen_random_uuid(), now(), '{}', 0)`,
	"worlds.scan_index_findings": `insert into worlds.scan_index_findings (subject, kind, scan_id, finished_at, occurrences)
		values ('card:c', 'k', gen_random_uuid(), now(), 1)`,
	"platform.failure_clusters": `insert into platform.failure_clusters (cluster_id, component, operation, error_class, revision, failures, failure_count, severity, first_seen_at, last_seen_at)
		values (gen_random_uuid(), 'c', 'o', 'e', 1, '[{"kind": "k", "count": 1, "example": ""}]', 1, 'low', now(), now())`,
	"platform.memories":           "insert into platform.memories (memory_id, scope, statement, observations, version, recorded_at) values (gen_random_uuid(), 'agent', 's', 1, 1, now())",
	"platform.curation_decisions": "insert into platform.curation_decisions (decision_id, candidate_id, verdict, note, decided_by, decided_at) values (gen_random_uuid(), gen_random_uuid(), 'approve', '', 'c', now())",
	"worlds.rule_candidates": `insert into worlds.rule_candidates (candidate_id, origin, origin_id, revision, statement, occurrences, kinds, confidence, proposed_at, updated_at)
		values (gen_random_uuid(), 'memory', gen_random_uuid(), 1, 's', 1, 1, 0.5, now(), now())`,
	"worlds.curation_rulings": "insert into worlds.curation_rulings (decision_id, candidate_id, outcome, ruled_at) values (gen_random_uuid(), gen_random_uuid(), 'applied', now())",
	"platform.conversations":  "insert into platform.conversations (conversation_id, kind, created_at) values (gen_random_uuid(), 'reactive', now())",
	"platform.agent_tasks": `with c as (insert into platform.conversations (conversation_id, kind, created_at) values (gen_random_uuid(), 'reactive', now())
		returning conversation_id) insert into platform.agent_tasks (agent_task_id, conversation_id, executor, input, status, created_at, updated_at, retain_until)
		select gen_random_uuid(), conversation_id, 'e', '{}', 'queued', now(), now(), now() + interval '1 day' from c`,
}

func TestDownLosesNothing(t *testing.T) {
	t.Parallel()
	for _, table := range values[string](t, pgtest.Conn(t, pgtest.New(t)), `select schemaname || '.' || tablename from pg_tables
		where schemaname in (select nspname from pg_namespace where nspowner = 'spectral_owner'::regrole)`) {
		if slices.Contains(rebuilt, table) {
			continue
		}
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			insert, known := keepers[table]
			if !known {
				t.Fatalf("give keepers (tests/database/schema_test.go) a statement that inserts a row of %s, or say in rebuilt that its rows come back", table)
			}
			at := pgtest.New(t)
			conn := pgtest.Conn(t, at)
			exec(t, conn, insert)
			if table != "core.deployments" {
				exec(t, conn, "delete from core.deployments") // the first table that would refuse
			}
			rows := "select count(*) from " + table
			before := value[int](t, conn, rows)
			err := down(t, newMigrator(t, at))
			if err == nil {
				t.Fatalf("going down lost a row of %s: its Down must raise an exception while the table has rows, as in db/migrations/00011_platform_tables.sql", table)
			}
			if !strings.Contains(err.Error(), table+" ") {
				t.Fatalf("going down with a row in %s: %v", table, err)
			}
			if after := value[int](t, conn, rows); after != before {
				t.Errorf("%d of %d rows are left", after, before)
			}
		})
	}
}

// together runs work n times at once and reports every error.
func together(t *testing.T, n int, work func(ctx context.Context, i int) error) {
	t.Helper()
	ctx := deadline(t)
	start, done := make(chan struct{}), make(chan error)
	for i := range n {
		go func() {
			<-start
			done <- work(ctx, i)
		}()
	}
	close(start)
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestMigratorsTogether(t *testing.T) {
	t.Parallel()
	at := pgtest.NewEmpty(t)
	together(t, 10, func(ctx context.Context, _ int) error { return migrateUp(ctx, at) })
	wantSchema(t, at)
}

// Roles and memberships belong to the cluster: migrators of ten databases create them at once. A
// lock on the catalog lets all of them look, and find nothing, before any of them may write.
func TestMigratorsOfTenDatabases(t *testing.T) {
	t.Parallel()
	s := server(t)
	admin := pgtest.Conn(t, s.URL("postgres"))
	for _, catalog := range []string{"pg_authid", "pg_auth_members"} {
		address := func(i int) string { return s.URL(fmt.Sprintf("%s_%d", catalog, i)) }
		for i := range 10 {
			exec(t, admin, fmt.Sprintf("create database %s_%d", catalog, i))
		}
		holder := begin(t, pgtest.Conn(t, s.URL("postgres")))
		exec(t, holder, "lock table "+catalog+" in exclusive mode")
		released := make(chan struct{})
		go func() {
			defer close(released)
			// not all ten, so that a slow machine stays within the lock_timeout of the first
			waitFor(t, admin, "select count(*) >= 5 from pg_locks where relation = '"+catalog+"'::regclass and not granted")
			_ = holder.Rollback(context.Background())
		}()
		together(t, 10, func(ctx context.Context, i int) error { return migrateUp(ctx, address(i)) })
		<-released
		for i := range 10 {
			wantSchema(t, address(i))
			wantPrivileges(t, pgtest.Conn(t, address(i)), nil, nil)
		}
		// the second round has the roles and creates the memberships
		exec(t, admin, "revoke spectral_platform, spectral_worlds from spectral_worker; revoke spectral_publisher from spectral_platform, spectral_worlds")
	}
}

// A migrator whose session ends in the middle of a step leaves nothing half done and nobody locked out.
func TestKilledMigrator(t *testing.T) {
	t.Parallel()
	at := pgtest.NewEmpty(t)
	migrator := newMigrator(t, at)
	if err := migrateUp(deadline(t), at); err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Conn(t, at)
	exec(t, conn, "delete from core.deployments")
	if err := down(t, migrator); err != nil {
		t.Fatal(err)
	}
	// the step that makes the default privileges changes a row of this catalog: it waits for us
	holder := begin(t, pgtest.Conn(t, at))
	exec(t, holder, "lock table pg_default_acl in exclusive mode")
	killed := make(chan error, 1)
	ctx := deadline(t)
	go func() { killed <- migrateUp(ctx, at) }()
	waitFor(t, conn, "select exists (select from pg_locks where relation = 'pg_default_acl'::regclass and not granted)")
	exec(t, conn, "select pg_terminate_backend(pid) from pg_locks where relation = 'pg_default_acl'::regclass and not granted")
	if err := <-killed; err == nil {
		t.Fatal("a migrator whose session was ended reports success")
	}
	if left := dump(t, at); left != "" {
		t.Errorf("the step that was cut short leaves\n%s", left)
	}
	if err := holder.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := migrateUp(ctx, at); err != nil {
		t.Fatal(err)
	}
	wantSchema(t, at)
}

// waitFor asks, as fast as the server answers, until the answer is yes.
func waitFor(t *testing.T, q querier, question string) {
	t.Helper()
	for ctx := deadline(t); ; {
		var yes bool
		if err := q.QueryRow(ctx, question).Scan(&yes); err != nil {
			t.Errorf("%s: %v", question, err)
			return
		}
		if yes {
			return
		}
	}
}

// buildWaits says that the build of an index has waited for a snapshot for longer than for a lock that others queue behind.
const buildWaits = `select exists (select from pg_stat_activity where datname = current_database() and query like 'create index concurrently%'
	and wait_event = 'virtualxid' and clock_timestamp() - query_start > interval '1 second')`

// A step that cannot have its lock must not keep publishers waiting behind it: it gives up quickly,
// and is tried again until a long transaction has ended.
func TestAMigrationWaitsWithoutBlockingPublishers(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	migrator := newMigrator(t, at)
	conn := pgtest.Conn(t, at)
	for value[bool](t, conn, "select exists (select from pg_attribute where attrelid = 'core.outbox'::regclass and attname = 'crashes' and not attisdropped)") {
		if _, err := undo(deadline(t), migrator); err != nil {
			t.Fatal(err)
		}
	}
	long := begin(t, pgtest.Conn(t, at))
	exec(t, long, "select count(*) from core.outbox")
	migrated := make(chan error, 1)
	ctx := deadline(t)
	var log bytes.Buffer // read when it is done
	go func() {
		waiting, err := app.NewMigrator(ctx, at, slog.New(slog.NewTextHandler(&log, nil)))
		if err == nil {
			_, err = waiting.Up(ctx, pgtest.Generation)
			err = errors.Join(err, waiting.Close())
		}
		migrated <- err
	}()
	publisher, watcher := pgtest.Conn(t, at), pgtest.Conn(t, at)
	exec(t, publisher, "select core.generation_announce(1); set statement_timeout = '2s'")
	for range 3 {
		waitFor(t, watcher, "select exists (select from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'core.outbox'::regclass and not granted)")
		exec(t, publisher, "select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{\"card_id\": \"c\", \"version\": 1, \"title\": \"t\"}')")
		waitFor(t, watcher, "select not exists (select from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'core.outbox'::regclass and not granted)")
	}
	// the builds of indexes that follow wait for whoever sees what was before, and nobody for them
	snapshot := begin(t, pgtest.Conn(t, at))
	exec(t, snapshot, "set transaction isolation level repeatable read; select count(*) from core.event_types")
	finish(t, long)
	waitFor(t, watcher, buildWaits)
	finish(t, snapshot)
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "workers doctor snapshots") {
		t.Errorf("whoever waits is told %q", log.String())
	}
	wantSchema(t, at)
}

// A step that runs in no transaction, for it builds an index beside whoever writes, waits as well: for a lock in turns, and for others' snapshots
// for as long as it takes, for nobody queues behind that.
func TestAnIndexWaitsWithoutBlockingPublishers(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	migrator := newMigrator(t, at)
	conn := pgtest.Conn(t, at)
	const built = "select exists (select from pg_class where oid = to_regclass('core.operator_actions_acted_at'))"
	for value[bool](t, conn, built) {
		if _, err := undo(deadline(t), migrator); err != nil {
			t.Fatal(err)
		}
	}
	// what a build that was cut short has left must be dropped first, which a reader of the table keeps from
	exec(t, conn, "create index operator_actions_acted_at on core.operator_actions (id)")
	reader, snapshot := begin(t, pgtest.Conn(t, at)), begin(t, pgtest.Conn(t, at))
	exec(t, reader, "select count(*) from core.operator_actions")
	migrated := make(chan error, 1)
	ctx := deadline(t)
	go func() { migrated <- migrateUp(ctx, at) }()
	watcher := pgtest.Conn(t, at)
	waiting := "exists (select from pg_locks where database = (select oid from pg_database where datname = current_database()) and not granted and relation in ('core.operator_actions'::regclass, 'core.operator_actions_acted_at'::regclass))"
	for range 2 { // turns
		waitFor(t, watcher, "select "+waiting)
		waitFor(t, watcher, "select not "+waiting)
	}
	exec(t, snapshot, "set transaction isolation level repeatable read; select count(*) from core.event_types")
	if err := reader.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// the build waits for the snapshot: for longer than a turn, which the wait itself says
	waitFor(t, watcher, buildWaits)
	if err := snapshot.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	wantSchema(t, at)
}

// A step down waits as one up does; while it waits somebody else may undo it, and then none further is.
func TestAStepDownWaitsWithoutBlockingPublishers(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]bool{"and is undone": false, "and somebody else undoes it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, ctx := pgtest.New(t), deadline(t)
			watcher := pgtest.Conn(t, at)
			migrator := newMigrator(t, at)
			const table, newest = 112, "select max(version_id) from spectral_goose.goose_db_version"
			for { // to the step that made a table, which whoever reads it keeps from being dropped
				if _, err := undo(ctx, migrator); err != nil {
					t.Fatal(err)
				}
				if value[int](t, watcher, newest) == table {
					break
				}
			}
			long := begin(t, pgtest.Conn(t, at))
			exec(t, long, "select count(*) from core.leads")
			undone := make(chan error, 1)
			go func() {
				_, err := undo(ctx, migrator)
				undone <- err
			}()
			waiting := "exists (select from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'core.leads'::regclass and not granted)"
			waitFor(t, watcher, "select "+waiting)
			waitFor(t, watcher, "select not "+waiting)
			if meanwhile {
				exec(t, watcher, "delete from spectral_goose.goose_db_version where version_id = $1", table)
			} else {
				waitFor(t, watcher, "select "+waiting) // in its next turn
			}
			finish(t, long)
			err := <-undone
			if now := value[int](t, watcher, newest); now != table-1 {
				t.Errorf("the newest step is %d", now)
			}
			if elsewhere := err != nil && strings.Contains(err.Error(), "the newest step is not 112 any more, but 111"); elsewhere != meanwhile || err != nil && !elsewhere {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// Managed Postgres gives no superuser: the owner of the database, who may create roles, migrates.
func TestMigrateWithoutSuperuser(t *testing.T) {
	t.Parallel()
	s := server(t)
	admin := pgtest.Conn(t, s.URL("postgres"))
	exec(t, admin, "create role migrator login createrole password 'test'")
	exec(t, admin, "create database ours owner migrator")
	at := as(t, s.URL("ours"), "migrator")
	if err := migrateUp(deadline(t), at); err != nil {
		t.Fatal(err)
	}
	wantSchema(t, at)
	wantPrivileges(t, pgtest.Conn(t, at), nil, nil)

	migrator := pgtest.Conn(t, at)
	exec(t, migrator, "create role worker login password 'test' in role spectral_worker")
	exec(t, migrator, "create role producer login password 'test' in role spectral_worlds")
	if err := app.CheckDatabase(deadline(t), &app.Settings{DatabaseURL: as(t, at, "worker"), PoolURL: as(t, at, "worker")}); err != nil {
		t.Errorf("a worker's check of the database: %v", err)
	}
	producer := pgtest.Conn(t, as(t, at, "producer"))
	exec(t, migrator, "select core.generation_announce(1)")
	exec(t, producer, "select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{\"card_id\": \"c\", \"version\": 1, \"title\": \"t\"}')")
	worker := pgtest.Conn(t, as(t, at, "worker"))
	exec(t, worker, "set role spectral_worker")
	if n := value[int](t, worker, `with claimed as (select * from core.outbox_claim(1, 'worlds.world_model_card.published', 10, '-infinity', gen_random_uuid(), false))
		select core.outbox_deliver(array_agg(event_id), array_agg(occurred_at)) from claimed`); n != 1 {
		t.Errorf("%d events delivered, want 1", n)
	}
	if err := migrateUp(deadline(t), at); err != nil {
		t.Errorf("migrating again: %v", err)
	}

	// another such owner did not create the roles: from 16 on it needs a grant, and is told which
	exec(t, admin, "create role another login createrole password 'test'")
	exec(t, admin, "create database theirs owner another")
	at = as(t, s.URL("theirs"), "another")
	err := migrateUp(deadline(t), at)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == denied {
		exec(t, admin, pg.Hint)
		err = migrateUp(deadline(t), at)
	}
	if err != nil {
		t.Errorf("migrating a database of another owner: %v", err)
	}
	wantSchema(t, at)
}

// as is the address for another login of password test.
func as(t *testing.T, at, login string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(login, "test")
	return u.String()
}
