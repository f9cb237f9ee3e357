package sql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// trap is SQL that fills the schema evil with namesakes of what our functions use. Each raises an
// error, so that it is seen.
func trap() string {
	var b strings.Builder
	function := func(name, arguments, returns string) {
		fmt.Fprintf(&b, "create function evil.%s(%s) returns %s language plpgsql as $$ begin raise exception 'fell for "+
			"evil.%[1]s(%[2]s)'; end $$;\n",
			name, arguments, returns)
	}
	i := 0
	for returns, operators := range map[string]string{
		"boolean": "= <> < > <= >= ~ !~ ~* !~* ~~ @> ?",
		"text":    "|| -> ->> #> #>> + - * / ^",
	} {
		for operator := range strings.FieldsSeq(operators) {
			for _, operands := range []string{
				"text, text", "uuid, uuid", "integer, integer", "bigint, bigint", "smallint, smallint", "boolean, boolean",
				"timestamptz, timestamptz",
				"timestamptz, interval", "timestamptz, timestamp", "jsonb, text", "jsonb, jsonb", "numeric, numeric",
				"text, integer", "text, bigint", "integer, text", "bigint, text",
				"jsonb, text[]", "double precision, integer", "integer, double precision", "numeric, double precision",
				"text[], text", "text, text[]", "uuid[], uuid", "name, text", "name, name", "oid, oid", "interval, interval",
				"date, integer", "double precision, double precision",
			} {
				i++
				left, right, _ := strings.Cut(operands, ", ")
				name := fmt.Sprintf("operator_%d", i)
				function(name, operands, returns)
				fmt.Fprintf(&b, "create operator evil.%s (leftarg = %s, rightarg = %s, function = evil.%s);\n", operator, left,
					right, name)
			}
		}
	}
	for _, f := range [][3]string{
		{"texteq", "text, text", "boolean"}, {"concat", "text, text", "text"}, {"concat", "text, bigint, text", "text"},
		{"now", "", "timestamptz"},
		{"clock_timestamp", "", "timestamptz"}, {"statement_timestamp", "", "timestamptz"},
		{"pg_notify", "text, text", "void"},
		{"hashtextextended", "text, bigint", "bigint"}, {"pg_try_advisory_xact_lock", "bigint", "boolean"},
		{"pg_try_advisory_xact_lock_shared", "bigint", "boolean"},
		{"current_setting", "text", "text"}, {"current_setting", "text, boolean", "text"},
		{"set_config", "text, text, boolean", "text"},
		{"octet_length", "text", "integer"}, {"jsonb_typeof", "jsonb", "text"}, {"jsonb_each", "jsonb", "setof record"},
		{"isfinite", "timestamptz", "boolean"},
		{"uuid_v7", "", "uuid"}, {"gen_random_uuid", "", "uuid"}, {"quote_literal", "text", "text"},
		{"left", "text, integer", "text"}, {"btrim", "text, text", "text"},
		{"translate", "text, text, text", "text"}, {"pg_has_role", "name, oid, text", "boolean"},
		{"outbox_insert", "integer, uuid, text, integer, timestamptz, text, text, uuid, jsonb, text, text, timestamptz, " +
			"bigint, text, text", "uuid"},
		{"outbox_notify", "", "trigger"}, {"unnest", "uuid[], timestamptz[]", "setof record"},
		{"unnest", "uuid[], timestamptz[], uuid[]", "setof record"},
		{"unnest", "text[]", "setof text"}, {"lease_holds", "timestamptz, double precision", "boolean"},
		{"pg_current_xact_id", "", "xid8"},
		{"make_interval", "integer, integer, integer, integer, integer, integer, double precision", "interval"},
		{"cardinality", "text[]", "integer"}, {"format", "text", "text"},
		{"to_char", "timestamp, text", "text"}, {"timezone", "text, timestamptz", "timestamp"},
		{"substr", "text, integer, integer", "text"},
		{"extract", "text, interval", "numeric"}, {"jsonb_set", "jsonb, text[], jsonb", "jsonb"},
		{"jsonb_build_object", "", "jsonb"}, {"jsonb_array_length", "jsonb", "integer"},
		{"pg_column_size", "jsonb", "integer"}, {"pg_column_compression", "jsonb", "text"}, {"text", "uuid", "text"},
		{"max", "bigint", "bigint"},
	} {
		function(f[0], f[1], f[2])
	}
	// types last: the functions above mean the true ones
	for _, name := range []string{"text", "uuid", "jsonb", "timestamptz", "int8", "bool"} {
		fmt.Fprintf(&b, "create domain evil.%s as integer check (value > 2000000000);\n", name)
	}
	for _, name := range []string{"outbox", "event_handled", "workers", "event_types", "deployments", "publisher_sources",
		"pg_roles"} {
		fmt.Fprintf(&b, "create table evil.%s ();\ncreate temp table %[1]s ();\n", name)
	}
	b.WriteString("create temp table text (a integer);\ncreate temp table uuid (a integer);\n")
	return b.String()
}

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
	exec(t, conn, trap())
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
		{"select core.outbox_poll(1, '{{card}}', '{-infinity}')", ""}, {"select core.outbox_barrier('outbox_gen_1')", ""},
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
