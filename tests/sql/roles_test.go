package sql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

const (
	denied  = "42501"
	allowed = ""
)

// attempt runs statements as a login in a transaction that is undone, and returns the SQLSTATE.
func attempt(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	_, err := conn.Exec(deadline(t), "begin; "+sql+"; rollback")
	code := sqlstate(t, err)
	if code != "" {
		exec(t, conn, "rollback")
	}
	return code
}

func TestRolesTryWhatTheyMayNot(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const (
		publishCard = "select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{\"card_id\": \"c\", " +
			"\"version\": 1, \"title\": \"t\"}')"
		publishThing = "select core.outbox_publish('platform.thing.happened', 'platform', '{}')"
		claim        = "select core.outbox_claim(1, 'worlds.world_model_card.published', 1, '-infinity', " +
			"gen_random_uuid(), false)"
		deliver = "select core.outbox_deliver('{}', '{}')"
		insert  = "select core.outbox_insert(null, null, 'worlds.world_model_card.published', 1, null, 'worlds', null, " +
			"null, '{}', null, null, null, null, null, null)"
		look       = "select core.outbox_poll(1, '{}', '{}')"
		generation = "select core.generation_announce(1)"
		types      = "select core.event_types_register(9, '[]')"
		lease      = "select core.outbox_lease(1, 'worlds.world_model_card.published')"
		handled    = "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, " +
			"content_class) values ('a.b', 'k', gen_random_uuid(), 'a.b', 'workspace')"
	)
	// what no group may do, the owner excepted; db/privileges.txt has all grants
	noGroup := []string{
		insert, "select core.lease_holds(now(), 1)", "delete from core.outbox", "truncate core.outbox",
		"lock table core.outbox in exclusive mode",
		"insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key) " +
			"values ('a.b', 1, 'core', 'operational', 1, '{}', 'k')",
		"update core.outbox set status = 'delivered'", "delete from core.event_handled",
		"update core.event_types set source = 'core'",
		"insert into core.publisher_sources values ('spectral_worlds', 'platform')",
		"update core.deployments set status = 'live'",
		"alter table core.outbox disable trigger outbox_notify", "drop table core.outbox",
		"alter function core.outbox_notify() set search_path = ''",
		"set role spectral_owner", "set session_replication_role = replica", "create table core.t ()",
		"create table worlds.t ()",
		"delete from worlds.world_model_cards", "alter table worlds.world_model_cards disable row level security",
	}
	work := []string{claim, lease, deliver, "select core.outbox_reap()", look, generation, handled, types}
	const worldsCards, systemCards, rows, ofOperators = "select from worlds.world_model_cards",
		"select from platform.system_cards", "select from core.outbox", "select core.generation_register(1, null)"
	for _, c := range []struct {
		role            string
		denied, allowed []string
	}{
		{"spectral_publisher", append(work, rows, worldsCards, "set role spectral_worker", "set role spectral_worlds",
			ofOperators), []string{"select from core.event_types", "select core.uuid_v7()"}},
		{
			"spectral_worker",
			[]string{
				rows, publishCard, publishThing, worldsCards, systemCards, "set role spectral_worlds; " + systemCards,
				"set role spectral_platform; " + worldsCards,
				"set role spectral_worlds; " + claim, "set role spectral_worlds; " + lease, "set role spectral_platform; " +
					handled, "set role spectral_operator", ofOperators,
			},
			append(work, "set role spectral_worlds; "+worldsCards, "set role spectral_platform; "+systemCards,
				"set role spectral_worlds; "+publishCard,
				"set role spectral_platform; "+publishThing, "set role spectral_worlds; set role spectral_worker; "+claim),
		},
		{"spectral_platform", append(work, rows, worldsCards, "set role spectral_worker", "set role spectral_worlds",
			ofOperators), []string{publishThing, systemCards, "set role spectral_publisher"}},
		{"spectral_worlds", append(work, rows, systemCards, "set role spectral_worker", "set role spectral_platform",
			ofOperators), []string{publishCard, worldsCards, "set role spectral_publisher"}},
		{"spectral_operator", append(work[:7:7], publishCard, worldsCards, systemCards, "set role spectral_worker"),
			[]string{rows, "select from core.event_handled", ofOperators}},
		{"spectral_retention", append(work, rows, publishCard, worldsCards, "set role spectral_worker"), nil},
		// a login of no group
		{"", append(work, rows, "select from core.event_types", "select core.uuid_v7()", publishCard,
			"set role spectral_publisher"), nil},
	} {
		t.Run(strings.TrimPrefix(c.role, "spectral_"), func(t *testing.T) {
			var roles []string
			if c.role != "" {
				roles = append(roles, c.role)
			}
			conn := pgtest.Conn(t, pgtest.Login(t, d.at, roles...))
			for want, statements := range map[string][]string{denied: append(noGroup, c.denied...), allowed: c.allowed} {
				for _, sql := range statements {
					if have := attempt(t, conn, sql); have != want {
						t.Errorf("%s: SQLSTATE %q, want %q", sql, have, want)
					}
				}
			}
		})
	}
	owner := d.login(t, "spectral_owner")
	for _, schema := range []string{"core", "worlds", "platform"} {
		if have := attempt(t, owner, "create table "+schema+".t ()"); have != allowed {
			t.Errorf("the owner creates in %s: SQLSTATE %s", schema, have)
		}
	}
	if n := d.count(t); n != 0 {
		t.Errorf("%d events were left by attempts that were undone", n)
	}
}

// A login of no context publishes as a source only once core.publisher_sources says so; the refusal comes with the
// statement that would.
func TestPublisherSources(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const publish = "select core.outbox_publish('{card}', 'worlds', '{}')"
	conn := d.session(t, "publisher")
	d.run(t, line{"publisher", publish, "SP017 source ~ '" + conn.Config().User + "', 'worlds'"})
	_, err := conn.Exec(deadline(t), filled(publish))
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		t.Fatal(err)
	}
	exec(t, d.admin, pg.Hint)
	d.run(t, line{"publisher", publish, ""},
		line{"publisher", "select core.outbox_publish('" + platformType + "', 'platform', '{}')", "SP017 source"},
		line{"publisher", "select core.outbox_publish('" + platformType + "', 'worlds', '{}')", "SP018 source"},
		line{"", "delete from core.publisher_sources where role_name = '" + conn.Config().User + "'", ""},
		line{"publisher", publish, "SP017 source"}, line{"", "select count(*) from core.outbox", "1"})
}

func TestRowSecurity(t *testing.T) {
	t.Parallel()
	d := setup(t)
	if open := values[string](t, d.admin, `
		select c.oid::regclass::text from pg_class c join pg_attribute a on a.attrelid = c.oid
			and a.attname = 'workspace_id' and not a.attisdropped
		where c.relnamespace in ('worlds'::regnamespace, 'platform'::regnamespace) and c.relkind in ('r', 'p')
			and not c.relrowsecurity`); len(open) > 0 {
		t.Errorf("tables with a workspace and no row security: %v", open)
	}
	a, b := uuid.New(), uuid.New()
	for _, c := range []struct{ role, table, insert string }{
		{"spectral_worlds", "worlds.world_model_cards",
			"insert into worlds.world_model_cards (workspace_id, card_id, version, card, published_at) values ($1, $2, 1, " +
				"'{}', now())"},
		{"spectral_platform", "platform.system_cards",
			"insert into platform.system_cards (workspace_id, card_id, version, title, snapshot) values ($1, $2, 1, 't', '{}')"},
	} {
		t.Run(c.table, func(t *testing.T) {
			t.Parallel()
			admin := pgtest.Conn(t, d.at)
			rows := map[string]uuid.NullUUID{"of a": {UUID: a, Valid: true}, "of b": {UUID: b, Valid: true}, "of none": {}}
			for id, workspace := range rows {
				exec(t, admin, c.insert, workspace, id)
			}
			for _, set := range []struct{ name, sql, sees string }{
				{"A", fmt.Sprintf("set local spectral.workspace_id = '%s'", a), "of a"},
				{"B", fmt.Sprintf("set local spectral.workspace_id = '%s'", b), "of b"},
				{"empty", "set local spectral.workspace_id = ''", "of none"},
				{"unset", "", "of none"},
			} {
				conn := pgtest.Conn(t, pgtest.Login(t, d.at, c.role)) // a new session: a value once set leaves '' behind
				err := inTx(t, conn, func(ctx context.Context, tx pgx.Tx) error {
					exec(t, tx, set.sql)
					if have := values[string](t, tx, "select card_id from "+c.table+" order by 1"); !slices.Equal(have,
						[]string{set.sees}) {
						t.Errorf("workspace %s sees %q, want %q", set.name, have, set.sees)
					}
					tag, err := tx.Exec(ctx, "update "+c.table+" set version = version + 1")
					if err != nil || tag.RowsAffected() != 1 {
						t.Errorf("workspace %s updates %d rows: %v", set.name, tag.RowsAffected(), err)
					}
					for id, workspace := range rows {
						_, err := inSavepoint(ctx, tx, c.insert, workspace, "new "+id)
						want := denied
						if id == set.sees {
							want = allowed
						}
						if have := sqlstate(t, err); have != want {
							t.Errorf("workspace %s inserts a row %s: SQLSTATE %q, want %q", set.name, id, have, want)
						}
						if id != set.sees {
							_, err = inSavepoint(ctx, tx, "update "+c.table+" set workspace_id = $1", workspace)
							if have := sqlstate(t, err); have != denied {
								t.Errorf("workspace %s moves its rows %s: SQLSTATE %q", set.name, id, have)
							}
						}
					}
					return tx.Rollback(ctx)
				})
				if err != nil && !errors.Is(err, pgx.ErrTxClosed) {
					t.Error(err)
				}
			}
			conn := d.login(t, c.role)
			exec(t, conn, "set spectral.workspace_id = 'nonsense'")
			_, err := conn.Exec(deadline(t), "select from "+c.table)
			if have := sqlstate(t, err); have != "22P02" {
				t.Errorf("a workspace that is no UUID: SQLSTATE %q", have)
			}
		})
	}
}

// inSavepoint keeps the transaction usable after an error.
func inSavepoint(ctx context.Context, tx pgx.Tx, sql string, arguments ...any) (tag pgconn.CommandTag, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		tag, err = tx.Exec(ctx, sql, arguments...)
		return err
	})
	return tag, err
}

// A context's rows are its own, and each workspace's are apart: a new table may lack either.
func TestTablesOfContextsAreApart(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	for what, condition := range map[string]string{
		"has no workspace_id: give it one, and a policy as in db/migrations/00011_platform_tables.sql": `not exists (
			select from pg_attribute a where a.attrelid = c.oid and a.attname = 'workspace_id' and not a.attisdropped)`,
		"has no row level security: enable it, as in db/migrations/00011_platform_tables.sql": "not c.relrowsecurity",
		"has no policy for all commands of its context's role that is about spectral.workspace_id": `not exists (
			select from pg_policy p where p.polrelid = c.oid and p.polcmd = '*'
				and p.polroles = array[('spectral_' || s)::regrole::oid]
			and pg_get_expr(p.polqual, p.polrelid) like '%spectral.workspace_id%' and pg_get_expr(p.polwithcheck,
				p.polrelid) like '%spectral.workspace_id%')`,
		"is granted to another role than its context's": "exists (select from aclexplode(c.relacl) g where g.grantee not " +
			"in (c.relowner, ('spectral_' || s)::regrole))",
		"cannot be read by its context": "not has_table_privilege('spectral_' || s, c.oid, 'select')",
	} {
		for _, table := range values[string](t, conn,
			"select c.relname from unnest('{platform,worlds}'::text[]) s join pg_class c on c.relnamespace = s::regnamespace "+
				"and c.relkind in ('r', 'p') where "+condition) {
			t.Errorf("table %s %s", table, what)
		}
	}
}
