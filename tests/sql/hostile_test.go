package sql_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// trap fills the schema evil with namesakes of operators, of the functions that ours call, and of types and tables.
// Each raises an error, so that it is seen. The types are last: what is made before means the true ones.
const trap = `do $trap$
declare
	v record;
	c_body constant text := 'language plpgsql as $$ begin raise exception ''fell for evil''; end $$';
	c_types constant regtype[] := '{text,uuid,int,bigint,smallint,boolean,timestamptz,interval,jsonb,numeric,text[],' ||
		'double precision,name,oid,date}';
begin
	for v in select o.oid, o.oprname, o.oprleft::regtype as l, o.oprright::regtype as r, o.oprresult::regtype as result
		from pg_operator o where o.oprleft = any (c_types) and o.oprright = any (c_types)
			and not (o.oprleft <> o.oprright and o.oprname ~ '^[<=>]+$') loop
		execute format('create function evil.operator_%s(%s, %s) returns %s %s', v.oid, v.l, v.r, v.result, c_body);
		execute format('create operator evil.%s (leftarg = %s, rightarg = %s, function = evil.operator_%s)',
			v.oprname, v.l, v.r, v.oid);
	end loop;
	for v in select p.proname, pg_get_function_identity_arguments(p.oid) as arguments from pg_proc p
		where p.pronamespace in ('pg_catalog'::regnamespace, 'core'::regnamespace) and p.prokind = 'f'
			and p.proname in (select called[1] from pg_proc ours, regexp_matches(ours.prosrc, '(\w+)\(', 'g') called
				where ours.pronamespace = 'core'::regnamespace)
			and pg_get_function_identity_arguments(p.oid) !~ 'internal|any|VARIADIC|OUT |cstring|record' loop
		execute format('create function evil.%I(%s) returns text %s', v.proname, v.arguments, c_body);
	end loop;
	foreach v.proname in array '{text,uuid,jsonb,timestamptz,int8,bool}'::text[] loop
		execute format('create domain evil.%s as integer check (value > 2000000000)', v.proname);
	end loop;
	for v in select relname from pg_class where relnamespace = 'core'::regnamespace and relkind = 'r' loop
		execute format('create table evil.%s (); create temp table %1$s ()', v.relname);
	end loop;
	create temp table text (a integer);
	create temp table uuid (a integer);
end $trap$`

// A publisher may put namesakes of operators, functions, types and tables first in its search_path, and even leave them
// there for the deferred trigger. Nothing of ours may use them.
func TestHostileSearchPath(t *testing.T) {
	t.Parallel()
	d := setup(t)
	at := pgtest.Login(t, d.at, "spectral_worlds", "spectral_worker")
	conn := pgtest.Conn(t, at)
	exec(t, d.admin, "create schema evil authorization "+conn.Config().User)
	t.Cleanup(func() { // before the login can be dropped; a session that ends drops its tables only afterwards
		_, err := conn.Exec(context.Background(), "discard temp")
		_, dropErr := d.admin.Exec(context.Background(), "drop schema evil cascade")
		if err := errors.Join(err, dropErr); err != nil {
			t.Error(err)
		}
	})
	exec(t, conn, trap)
	exec(t, conn, "set search_path = evil, pg_temp, pg_catalog")
	if _, err := conn.Exec(deadline(t), "select 'a' = 'b'::pg_catalog.text"); err == nil ||
		!strings.Contains(err.Error(), "fell for") {
		t.Fatalf("the trap does not work: %v", err)
	}
	card := strings.ReplaceAll(fields{"payload": `{"card_id": "c", "version": 1, "title": "t"}`}.complete().element(),
		"'", "''")
	const leased = "(select event_id, occurred_at, claim_token from core.outbox_lease(1, '{card}', p_handlers => " +
		"'{a.b}', p_crashed => null)) as l(i, o, t)"
	for _, c := range []struct{ sql, status string }{
		{"select core.outbox_publish('{card}', 'worlds', '" + nested(64) +
			"', 1, 'platform', core.uuid_v7(), 'k', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', " +
			"'2024-02-29T00:00:00Z', 1, null, 'operational')", "pending 0"},
		{"select core.outbox_publish_many('[" + strings.Repeat(card+",", 149) + card + "]')", ""}, // notified in bulk
		{"begin; set local role spectral_worlds; select core.outbox_publish('{card}', 'worlds', '{}'); commit", ""},
		{"begin; set constraints all immediate; select core.outbox_publish('{card}', 'worlds', '{}'); rollback", ""},
		{"", "pending 0"},
		{"select core.outbox_heartbeat(array[i], array[o], array[t], '{c.d}') from " + leased, "in_flight 1 c.d"},
		{"select core.lease_expires_in()", "in_flight 1 c.d"}, {"", "pending 0"},
		{"select core.outbox_release(array[i], array[o], array[t]) from " + leased, "pending 0"},
		{"select core.outbox_retry_leased(i, o, 0, 'E', '{}', true, t) from " + leased, "pending 1"},
		{"select core.outbox_fail_leased(i, o, 'E', '{}', true, t) from " + leased, "failed 2"},
		{"", "pending 0"}, {"select core.outbox_deliver_leased(array[i], array[o], array[t]) from " + leased, "delivered 1"},
		{"", "pending 0"},
		{"select core.outbox_lease(1, '{card}', p_lease => 0.000001)", "in_flight 1"},
		{"select core.outbox_reap()", "pending 1"},
		{"select core.outbox_poll(1, '{{card}}', '{-infinity}')", ""},
		{"select core.outbox_barrier_poll('{outbox_gen_1}', 1, '{{card}}', '{-infinity}')", ""},
		{"select core.outbox_claim(1, '{card}', 10, '-infinity', pg_catalog.gen_random_uuid(), null)", ""},
		{"select core.generation_announce(1)", ""},
		{"", "pending 0"}, {"select core.outbox_deliver(array[id], array[occurred_at]) from (select event_id, occurred_at " +
			"from core.outbox_claim(1, '{card}', 10, '-infinity', pg_catalog.gen_random_uuid(), false)) as c(id, occurred_at)",
			"delivered 1"},
		{`select core.event_types_register(2,
			'[{"event_type":"worlds.a","event_version":1,"source":"worlds","content_class":"workspace","consumed":true}]')`, ""},
		{"set role spectral_worlds; set spectral.workspace_id = '0190163d-8694-739b-aea5-966c26f8ad91'; select card_id " +
			"from worlds.world_model_cards", ""},
	} {
		if c.sql == "" { // one event, as new
			exec(t, d.admin, "delete from core.outbox where id <> (select min(id::text)::uuid from core.outbox); update "+
				"core.outbox set status = 'pending', attempts = 0, crashes = 0, claim_token = null, lease_handler = null, "+
				"available_at = created_at")
		}
		sql := filled(c.sql)
		if sql != "" {
			if _, err := conn.Exec(deadline(t), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
		if c.status == "" {
			continue
		}
		if have := value[string](t, d.admin,
			"select concat_ws(' ', status, attempts, lease_handler) from core.outbox"); have != c.status {
			t.Errorf("%s: the event is %q, want %q", sql, have, c.status)
		}
	}
}
