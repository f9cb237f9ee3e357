//go:build heavy

package sql_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/tests/pgtest"
)

// A step that builds an index, as later versions will have them.
const (
	index = `-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
drop index if exists core.operator_actions_more;
set lock_timeout = 0; -- writers do not queue behind it, and it waits for the oldest snapshot
create index concurrently operator_actions_more on core.operator_actions (id, acted_at);
reset lock_timeout;
-- +goose Down
drop index core.operator_actions_more;
`
	hasIndex = "select exists (select from pg_index where indexrelid = to_regclass('core.operator_actions_more') and " +
		"indisvalid and indnatts = 2)"
)

// server starts a server of the test's own, for what concerns a whole cluster.
func server(t *testing.T) *embeddedpg.Server {
	t.Helper()
	s, stop, err := pgtest.StartTemporary(deadline(t), "", os.Getenv(app.EnvPostgresBin))
	must(t, err)
	t.Cleanup(func() { must(t, stop()) })
	return s
}

// Roles and memberships belong to the cluster: migrators of several databases create them at once. A
// lock on the catalog lets all of them look, and find nothing, before any of them may write.
func TestMigratorsOfDatabasesOfAServer(t *testing.T) {
	t.Parallel()
	const databases = 3
	s := server(t)
	admin := pgtest.Conn(t, s.URL("postgres"))
	for _, catalog := range []string{"pg_authid", "pg_auth_members"} {
		address := func(i int) string { return s.URL(fmt.Sprintf("%s_%d", catalog, i)) }
		for i := range databases {
			exec(t, admin, fmt.Sprintf("create database %s_%d", catalog, i))
		}
		holder := begin(t, pgtest.Conn(t, s.URL("postgres")))
		exec(t, holder, "lock table "+catalog+" in exclusive mode")
		released := make(chan struct{})
		go func() {
			defer close(released)
			waitFor(t, admin, "select count(*) >= 2 from pg_locks where relation = '"+catalog+"'::regclass and not granted")
			_ = holder.Rollback(context.Background())
		}()
		together(t, databases, func(ctx context.Context, i int) error { return migrateUp(ctx, address(i)) })
		<-released
		for i := range databases {
			wantSchema(t, address(i))
			wantPrivileges(t, pgtest.Conn(t, address(i)), nil, nil)
		}
		// the second round has the roles and creates the memberships
		exec(t, admin, "revoke spectral_platform, spectral_worlds from spectral_worker; revoke spectral_publisher from "+
			"spectral_platform, spectral_worlds")
	}
}

// The owner of another database did not create the roles: from 16 on it needs a grant, and is told which. tests/managed
// does all else without a superuser.
func TestAnotherOwnerIsToldWhichGrantItNeeds(t *testing.T) {
	t.Parallel()
	s := server(t)
	admin := pgtest.Conn(t, s.URL("postgres"))
	for _, owner := range []string{"first", "second"} {
		exec(t, admin, "create role "+owner+" login createrole password 'test'")
		exec(t, admin, "create database of_"+owner+" owner "+owner)
		at := as(t, s.URL("of_"+owner), owner)
		err := migrateUp(deadline(t), at)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == denied && owner == "second" {
			exec(t, admin, pg.Hint)
			err = migrateUp(deadline(t), at)
		}
		if err != nil {
			t.Errorf("migrating as the %s owner: %v", owner, err)
		}
		wantSchema(t, at)
	}
}

// as is the address for another login of password test.
func as(t *testing.T, at, login string) string {
	t.Helper()
	u, err := url.Parse(at)
	must(t, err)
	u.User = url.UserPassword(login, "test")
	return u.String()
}

// buildWaits says that the build of an index has waited for a snapshot for longer than for a lock that others queue
// behind.
const buildWaits = `select exists (select from pg_stat_activity where datname = current_database()
	and query like 'create index concurrently%'
	and wait_event = 'virtualxid' and clock_timestamp() - query_start > interval '1 second')`

// Another program's goose table is not taken for ours, and ours is not in its way; public may be absent.
func TestMigrateBesideAnotherProgram(t *testing.T) {
	t.Parallel()
	const others = `create table public.goose_db_version (id serial primary key, version_id bigint not null,
			is_applied boolean not null, tstamp timestamp default now());
		insert into public.goose_db_version (version_id, is_applied) select i, true from generate_series(0, 200) i;
		revoke all on schema public from public; alter schema public owner to pg_database_owner; create schema astray;
		do $$ begin execute format('alter database %I set search_path = astray', current_database()); end $$`
	for name, before := range map[string]string{
		"another goose table, and a search_path that leads astray": others,
		"no schema public, and the schema that goose uses exists":  "drop schema public; create schema spectral_goose",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := pgtest.NewEmpty(t)
			exec(t, pgtest.Conn(t, at), before)
			must(t, migrateUp(deadline(t), at))
			wantSchema(t, at)
			conn := pgtest.Conn(t, at)
			if before == others && value[int](t, conn, "select count(*) from public.goose_db_version") != 201 {
				t.Error("the other program's table was written to")
			}
			login := pgtest.Login(t, at, "spectral_worker")
			if err := app.CheckDatabase(deadline(t), &app.Settings{DatabaseURL: login, PoolURL: login}); err != nil {
				t.Errorf("a worker's check of the database: %v", err)
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

// A migrator whose session ends in the middle of a step leaves nothing half done and holds up no later one. Two later
// ones that start together migrate once.
func TestMigratorsAfterAKilledOne(t *testing.T) {
	t.Parallel()
	pgtest.New(t) // the roles are there: the first step waits for nothing else
	at := pgtest.NewEmpty(t)
	conn := pgtest.Conn(t, at)
	// the step that makes the default privileges changes a row of this catalog: it waits for us
	holder := begin(t, pgtest.Conn(t, at))
	exec(t, holder, "lock table pg_default_acl in exclusive mode")
	killed := inBackground(t, migrator(t, at, steps(t, nil), slog.New(slog.DiscardHandler)))
	waitFor(t, conn, lockWaits("pg_default_acl"))
	exec(t, conn, "select pg_terminate_backend(pid) from pg_locks where relation = 'pg_default_acl'::regclass and not "+
		"granted and database = (select oid from pg_database where datname = current_database())")
	if err := <-killed; err == nil {
		t.Fatal("a migrator whose session was ended reports success")
	}
	wantNothing(t, at)
	finish(t, holder)
	together(t, 2, func(ctx context.Context, _ int) error { return migrateUp(ctx, at) })
	wantSchema(t, at)
}

// A step that builds an index runs in no transaction. It waits for a lock in turns, and for others' snapshots for as
// long as it takes, since no one queues behind that. What a build that was cut short left is dropped first.
func TestAnIndexWaitsWithoutBlockingPublishers(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	exec(t, pgtest.Conn(t, at), "create index operator_actions_more on core.operator_actions (id)")
	reader, snapshot, watcher := begin(t, pgtest.Conn(t, at)), begin(t, pgtest.Conn(t, at)), pgtest.Conn(t, at)
	exec(t, reader, "select count(*) from core.operator_actions")
	migrated := inBackground(t, migrator(t, at, steps(t, map[string]string{"90001_core_index.sql": index}),
		slog.New(slog.DiscardHandler)))
	const waiting = "exists (select from pg_locks where database = (select oid from pg_database where datname = " +
		"current_database()) and not granted and relation in ('core.operator_actions'::regclass, " +
		"'core.operator_actions_more'::regclass))"
	waitFor(t, watcher, "select "+waiting)
	waitFor(t, watcher, "select not "+waiting) // its turn is over
	exec(t, snapshot, "set transaction isolation level repeatable read; select count(*) from core.event_types")
	finish(t, reader)
	waitFor(t, watcher, buildWaits)
	finish(t, snapshot)
	must(t, <-migrated)
	if !value[bool](t, watcher, hasIndex) {
		t.Error("the index is not there, or not the new one")
	}
}

// A step down waits as one up does. If another session undoes the step in between, no further one is undone.
func TestAStepDownWaitsWithoutBlockingPublishers(t *testing.T) {
	t.Parallel()
	at, ctx := pgtest.New(t), deadline(t)
	watcher := pgtest.Conn(t, at)
	m := migrator(t, at, steps(t, map[string]string{"90001_core_column.sql": column}), slog.New(slog.DiscardHandler))
	if _, err := m.Up(ctx, pgtest.Generation); err != nil {
		t.Fatal(err)
	}
	long := begin(t, pgtest.Conn(t, at))
	exec(t, long, "select count(*) from core.outbox")
	undone := make(chan error, 1)
	go func() {
		_, err := undo(ctx, m)
		undone <- err
	}()
	waitForTurn(t, watcher)
	exec(t, watcher, "delete from spectral_goose.goose_db_version where version_id = 90001")
	finish(t, long)
	if err := <-undone; err == nil || !strings.Contains(err.Error(), "the newest step is now 17, not 90001") {
		t.Errorf("it says %v", err)
	}
	if newest := value[int](t, watcher, "select max(version_id) from spectral_goose.goose_db_version"); newest != 17 {
		t.Errorf("the newest step is %d", newest)
	}
}
