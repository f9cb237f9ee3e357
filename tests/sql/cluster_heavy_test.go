//go:build heavy

package sql_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/tests/pgtest"
)

// server starts a server of the test's own, for what concerns a whole cluster.
func server(t *testing.T) *embeddedpg.Server {
	t.Helper()
	s, err := embeddedpg.Start(deadline(t), embeddedpg.Config{Ephemeral: true, BinDir: os.Getenv(app.EnvPostgresBin)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("stop the server: %v", err)
		}
	})
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
		exec(t, admin, "revoke spectral_platform, spectral_worlds from spectral_worker; revoke spectral_publisher from spectral_platform, spectral_worlds")
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
