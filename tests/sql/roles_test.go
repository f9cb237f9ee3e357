package sql_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

const denied = "42501"

// db/privileges.txt has all grants. These are what would break a promise.
func TestRolesTryWhatTheyMayNot(t *testing.T) {
	t.Parallel()
	d := setup(t)
	tries := func(as, want string, statements ...string) {
		t.Helper()
		for _, sql := range statements {
			d.run(t, line{as, "begin; " + sql, want}, line{as, "rollback", ""})
		}
	}
	card, thing := publishInto(1), "select core.outbox_publish('platform.thing.happened', 'platform', '{}')"
	work := []string{"select core.outbox_claim(1, '{card}', 1, '-infinity', gen_random_uuid(), false)",
		"select core.outbox_deliver('{}', '{}')", "select core.outbox_lease(1, '{card}')", "select core.outbox_reap()",
		"select core.outbox_poll(1, '{}', '{}')", `insert into core.event_handled (handler_name, idempotency_key, event_id,
			event_type, content_class) values ('a.b', 'k', gen_random_uuid(), 'a.b', 'workspace')`,
		"select core.event_types_register(9, '[]')"}
	const worldsCards, systemCards, rows, operate = "select from worlds.world_model_cards",
		"select from platform.system_cards", "select from core.outbox", "select core.generation_register(1, null)"
	for _, role := range []string{"publisher", "worker", "platform", "worlds", "operator", "retention"} {
		tries(role, denied, "select core.lease_holds(now(), 1)", "update core.outbox set status = 'delivered'",
			`insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key)
				values ('a.b', 1, 'core', 'operational', 1, '{}', 'k')`,
			"delete from core.outbox", "truncate core.outbox", "delete from core.event_handled",
			"insert into core.publisher_sources values ('spectral_worlds', 'platform')",
			"update core.deployments set status = 'live'", "alter table core.outbox disable trigger outbox_notify",
			"set role spectral_owner", "set session_replication_role = replica", "create table worlds.t ()",
			"delete from worlds.world_model_cards", "alter table worlds.world_model_cards disable row level security")
		if role != "worker" {
			tries(role, denied, append(work[:6:6], "set role spectral_worker")...)
		}
	}
	tries("publisher", denied, rows, worldsCards, "set role spectral_worlds", operate)
	tries("worker", denied, rows, card, thing, worldsCards, systemCards, "set role spectral_worlds; "+systemCards,
		"set role spectral_worlds; "+work[0], "set role spectral_platform; "+work[5], "set role spectral_operator", operate)
	tries("worker", "", append(work, "set role spectral_worlds; "+worldsCards, "set role spectral_worlds; "+card,
		"set role spectral_platform; "+thing, "set role spectral_worlds; set role spectral_worker; "+work[0])...)
	tries("platform", denied, rows, worldsCards, "set role spectral_worlds", operate)
	tries("platform", "", thing, systemCards)
	tries("worlds", denied, rows, systemCards, "set role spectral_platform", operate)
	tries("worlds", "", card, worldsCards)
	tries("operator", denied, card, worldsCards, systemCards)
	tries("operator", "", rows, "select from core.event_handled", operate)
	tries("retention", denied, rows, card, worldsCards)
	tries("owner", "", "create table core.t ()", "create table worlds.t ()", "create table platform.t ()")
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
	const insert = "insert into worlds.world_model_cards (workspace_id, card_id, version, card, published_at) " +
		"values (%s, '%s', 1, '{}', now())"
	workspaces := map[string]string{"a": "'" + key(1).String() + "'", "b": "'" + key(2).String() + "'", "none": "null"}
	for id, workspace := range workspaces {
		exec(t, d.admin, fmt.Sprintf(insert, workspace, id))
	}
	for _, c := range []struct{ as, set, sees string }{
		{"worlds", "set local spectral.workspace_id = " + workspaces["a"], "a"},
		{"worlds", "set local spectral.workspace_id = " + workspaces["b"], "b"},
		{"worlds", "set local spectral.workspace_id = ''", "none"},
		{"worlds 2", "select", "none"}, // in a new session: a value once set leaves '' behind
	} {
		d.run(t, line{c.as, "begin; " + c.set, ""}, line{c.as, "select card_id from worlds.world_model_cards", c.sees},
			line{c.as, "update worlds.world_model_cards set version = version + 1 returning card_id", c.sees})
		for id, workspace := range workspaces {
			want := denied
			if id == c.sees {
				want = ""
			}
			d.run(t, line{c.as, "savepoint s", ""}, line{c.as, fmt.Sprintf(insert, workspace, "new"), want},
				line{c.as, "rollback to s", ""},
				line{c.as, "update worlds.world_model_cards set workspace_id = " + workspace, want},
				line{c.as, "rollback to s", ""})
		}
		d.run(t, line{c.as, "rollback", ""})
	}
	d.run(t, line{"worlds", "set spectral.workspace_id = 'nonsense'", ""},
		line{"worlds", "select from worlds.world_model_cards", "22P02"})
}

// A context's rows are its own, and each workspace's are apart: a new table may lack either.
func TestTablesOfContextsAreApart(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	for what, condition := range map[string]string{
		"has no workspace_id: give it one, and a policy as in db/migrations/00012_platform_tables.sql": `not exists (
			select from pg_attribute a where a.attrelid = c.oid and a.attname = 'workspace_id' and not a.attisdropped)`,
		"has no row level security: enable it, as in db/migrations/00012_platform_tables.sql": "not c.relrowsecurity",
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
