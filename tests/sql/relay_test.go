package sql_test

import (
	"fmt"
	"testing"
)

// relayed leaves three events that a broker has: sent in generation 1 while their path was that of the broker.
func (d *database) relayed(t *testing.T) {
	t.Helper()
	d.rows(t, 3, "")
	exec(t, d.admin, "create or replace view core.shown as select id, occurred_at, available_at from core.outbox; "+
		"grant select on core.shown to public")
	d.run(t, line{"operator", "select core.relay_switch('jetstream', 'me')", "*"},
		line{"worker", "select core.outbox_relayed(array_agg(id), array_agg(occurred_at), '{t,t,t}') from (select event_id " +
			"as id, occurred_at from core.outbox_claim(1, '{card}', 3, '-infinity', gen_random_uuid(), false)) c", "3"})
}

const (
	threeKeys = "'{{1},{2},{3}}', (select array_agg(occurred_at order by id) from (values ('{1}'::uuid), ('{2}'), " +
		"('{3}')) v(id) join core.shown using (id))"
	statusOfAll = "select string_agg(status || case when relayed_at = '-infinity' then ' refused' when relayed_at is " +
		"null then '' else ' sent' end, ', ' order by id) from core.outbox"
)

// What the path decides: which rows become relayed, and which stay.
func TestThePathDecidesWhatBecomesOfWhatWasSent(t *testing.T) {
	t.Parallel()
	d := setup(t)
	send := "select core.outbox_relayed(array_agg(event_id), array_agg(occurred_at), '{t,t,f}') from " +
		"core.outbox_claim(1, '{card}', 3, '-infinity', gen_random_uuid(), false)"
	for _, c := range []struct{ path, relayed, statuses string }{
		{"postgres", "0", "pending sent, pending sent, pending refused"},
		{"both", "0", "pending sent, pending sent, pending refused"},
		{"jetstream", "2", "relayed sent, relayed sent, pending refused"},
	} {
		d.rows(t, 3, "")
		d.run(t, line{"operator", "select core.relay_switch('" + c.path + "')", "*"}, line{"worker", send, c.relayed},
			line{"", statusOfAll, c.statuses})
	}
	d.run(t, line{"operator", "select core.relay_switch('pigeon')", "SP030 path ~ must be postgres, both or jetstream"},
		line{"operator", "select core.relay_switch('both', ' ')", "SP030 acted_by"},
		line{"operator", "select path, switched_by = session_user from core.relay", "jetstream t"},
		line{"worker", "select core.relay_switch('postgres')", "42501"},
		line{"", "select string_agg(details ->> 'path', ' ' order by id) from core.operator_actions",
			"postgres both jetstream"})
}

// A switch waits for those who mark rows as relayed; when it has ended, none of them does any more.
func TestNothingBecomesRelayedAfterASwitch(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "")
	d.run(t, line{"operator", "select core.relay_switch('jetstream')", "postgres"}, line{"worker", "begin; select " +
		"core.outbox_relayed(array_agg(event_id), array_agg(occurred_at), '{t}') from core.outbox_claim(1, '{card}', 1, " +
		"'-infinity', gen_random_uuid(), false)", "1"})
	switched := d.later(t, "operator", "select core.relay_switch('postgres')")
	d.run(t, line{"worker", "commit", ""})
	if answer := switched(); answer != "jetstream" {
		t.Errorf("the switch answers %s", answer)
	}
	d.run(t, line{"operator", "select core.outbox_relayed_return_lost(null, null, 'infinity', null, 10)", "1"},
		line{"", statusOfAll, "pending sent"})
}

// Which messages may be handled, and which events are delivered once their handlers have keys.
func TestRelayedEventsAreHandled(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.relayed(t)
	take := "select coalesce(string_agg(right(t::text, 1), ' ' order by t), 'none') from core.outbox_relayed_take(%s, " +
		"'platform.a', " + threeKeys + ") t"
	taken := func(generation, want string) { d.run(t, line{"worker", fmt.Sprintf(take, generation), want}) }
	taken("1", "1 2 3")
	taken("2", "none")
	for _, c := range []struct{ set, want string }{
		{`handler_failures = '{"platform.a": {"failures": 1}}'`, "1 3"}, {`handler_failures = '{"platform.b": {}}'`, "1 2 3"},
		{"crashes = 1", "1 3"}, {"crashes = 0, status = 'pending'", "1 2 3"}, {"status = 'delivered'", "1 3"},
		{"status = 'failed'", "1 3"}, {"status = 'relayed', deleted_at = now()", "1 3"}, {"deleted_at = null", "1 2 3"},
	} {
		d.alter(t, 2, c.set)
		taken("1", c.want)
	}
	d.run(t, line{"operator", "select core.event_type_pause('{card}', 1)", ""})
	taken("1", "none")
	d.run(t, line{"operator", "select core.event_type_resume('{card}', 1)", ""})

	deliver := "select coalesce(string_agg(concat(right(id::text, 1), case when pending then ' pending' end), ', ' " +
		"order by id), 'none') from core.outbox_relayed_deliver('{platform.a,worlds.b}', " + threeKeys + ")"
	keys := func(handler, events string) {
		exec(t, d.admin, "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, "+
			"content_class) select $1, 'k' || i, gen_random_uuid(), 'a.b', 'operational' from unnest($2::text::int[]) i",
			handler, events)
	}
	keys("platform.a", "{1,2,3}")
	d.alter(t, 2, "target = 'platform'")
	d.alter(t, 3, "status = 'pending'")
	d.run(t, line{"worker", deliver, "2, 3 pending"}) // 1 has no key of worlds.b, 2 is not for it, 3 was given back
	keys("worlds.b", "{1,3}")
	d.run(t, line{"worker", deliver, "1, 3 pending"},
		line{"", statusOfAll, "delivered sent, delivered sent, pending sent"})
}

// Of two handlers that end at once the second waits for the first, and sees its key.
func TestTheLastHandlerDelivers(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.relayed(t)
	key := func(handler string) string {
		return "begin; insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) " +
			"values ('" + handler + "', 'k1', gen_random_uuid(), 'a.b', 'operational')"
	}
	deliver := "select count(*) from core.outbox_relayed_deliver('{platform.a,worlds.b}', " + threeKeys + ")"
	d.run(t, line{"worker", key("platform.a"), ""}, line{"worker 2", key("worlds.b"), ""}, line{"worker", deliver, "0"})
	second := d.later(t, "worker 2", deliver)
	d.run(t, line{"worker", "commit", ""})
	if answer := second(); answer != "1" {
		t.Errorf("the second handler delivers %s events, want 1", answer)
	}
	d.run(t, line{"worker 2", "commit", ""}, line{"", statusOfAll, "delivered sent, relayed sent, relayed sent"})
}

// What goes back is due at once, above every watermark, and wakes the listeners; what a broker lost goes back by type
// and time; a failure is recorded as that of a claimed row.
func TestRelayedEventsGoBack(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.relayed(t)
	d.run(t,
		line{"worker", "select event_type, first_at <= now from core.outbox_relayed_since(1, '{{card},no.type}')",
			"{card} t"},
		line{"worker", "select core.outbox_relayed_return_lost(1, '{card}', '2020-01-01', null, 10)", "0"},
		line{"worker", "select core.outbox_relayed_return_lost(2, '{card}', 'infinity', null, 10)", "0"},
		line{"worker", "select core.outbox_relayed_return_lost(1, '{card}', 'infinity', null, 1)", "1"},
		line{"", statusOfAll, "pending sent, relayed sent, relayed sent"},
		line{"", "listen outbox_gen_1", ""},
		line{"worker", "select core.outbox_relayed_return('{{2}}', array(select occurred_at from core.shown where " +
			"id = '{2}'))", ""},
		line{"", "select available_at > clock_timestamp() - interval '10 seconds' from core.outbox where id = '{2}'", "t"},
		line{"worker", "begin; select attempts, handler_failures, handled from core.outbox_relayed_fail('{3}', (select " +
			"occurred_at from core.shown where id = '{3}'), '{platform.a}')", "0 {} {}"},
		line{"worker", "select core.outbox_retry('{3}', occurred_at, available_at, 60, 'E: platform.a: no', " +
			"'{\"platform.a\": {\"failures\": 1}}', true) from core.shown where id = '{3}'", "t"},
		line{"worker", "commit", ""},
		line{"", "select status, attempts, available_at > now(), last_error from core.outbox where id = '{3}'",
			"pending 1 t E: platform.a: no"})
	exec(t, d.admin, "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, "+
		"content_class) values ('worlds.b', 'k1', gen_random_uuid(), 'a.b', 'operational')")
	d.run(t, line{"worker", "select handled from core.outbox_relayed_fail('{1}', (select occurred_at from core.shown " +
		"where id = '{1}'), '{platform.a,worlds.b}')", "{worlds.b}"})
	d.alter(t, 1, "status = 'delivered'")
	d.run(t, line{"worker", "select count(*) from core.outbox_relayed_fail('{1}', (select occurred_at from core.shown " +
		"where id = '{1}'), '{platform.a}')", "0"})
}

// Rows go back that were sent ten seconds before the oldest message that the broker has. One that cannot be written
// keeps no other from it, and is not counted.
func TestWhatTheBrokerLostGoesBack(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.relayed(t)
	for n, ago := range []int{30, 15, 0} {
		d.alter(t, n+1, "relayed_at = relayed_at - $1 * interval '1 second'", ago)
	}
	lost := "select core.outbox_relayed_return_lost(1, '{card}', now(), '%s', 10)"
	d.run(t, line{"worker", fmt.Sprintf(lost, "{9}"), "0"}, line{"worker", fmt.Sprintf(lost, "{2}"), "1"},
		line{"", statusOfAll, "pending sent, relayed sent, relayed sent"})
	d.relayed(t)
	exec(t, d.admin, `create or replace function public.keep() returns trigger language plpgsql as $$ begin
			if old.id = '`+key(2).String()+`' then raise 'no'; elsif old.id = '`+key(3).String()+`' then return null; end if;
			return new;
		end $$;
		create trigger keep before update on core.outbox for each row execute function public.keep()`)
	all := "select core.outbox_relayed_return_lost(null, null, 'infinity', null, 10)"
	d.run(t, line{"operator", all, "1"}, line{"operator", all, "0"},
		line{"", statusOfAll, "pending sent, relayed sent, relayed sent"})
}

// What was sent and stays is claimed by itself, as far as it was due.
func TestKeptRowsAreClaimed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 4, "")
	d.alter(t, 2, "relayed_at = '-infinity'")
	d.alter(t, 4, "relayed_at = now()")
	claim := "select coalesce(string_agg(right(event_id::text, 1), ' ' order by event_id), 'none') from " +
		"core.outbox_claim(1, '{card}', 10, '-infinity', gen_random_uuid(), false, %s)"
	d.run(t, line{"worker", fmt.Sprintf(claim, "null"), "1 2 3 4"}, line{"worker", fmt.Sprintf(claim, "now()"), "2 4"},
		line{"worker", fmt.Sprintf(claim, "now() - interval '1 day'"), "none"})
}

// Relayed events count as in flight wherever a generation is looked at, and operators are told where they are.
func TestRelayedEventsKeepTheirGeneration(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.relayed(t)
	exec(t, d.admin, "select core.generation_announce(1); select core.generation_announce(44)")
	d.run(t, line{"operator", "select core.generation_drain(1, 'me')", ""},
		line{"operator", "select due, scheduled, in_flight from core.generation_status(1)", "0 0 3"},
		line{"worker", "select core.generation_state(1)", "draining"},
		line{"operator", "select core.generation_retire(1, 'me')", "not empty: 0 due, 0 scheduled, 3 in flight"},
		line{"worker", "select event_type, in_flight from core.generation_backlog(1)", "{card} 3"},
		line{"operator", "select core.outbox_retry_now('{1}')", "SP032 event_id ~ workers relay back"},
		line{"operator", "select core.outbox_discard('{1}', 'me')", "SP032 event_id ~ workers relay back"},
		line{"operator", "select due, in_flight from core.outbox_adoptable(1, 44)", "3 0"},
		line{"operator", "select core.outbox_adopt(1, 44, p_event_types => '{no.type}')", "0"},
		line{"", statusOfAll, "relayed sent, relayed sent, relayed sent"},
		line{"operator", "select core.outbox_adopt(1, 44)", "3"},
		line{"", "select count(*) from core.outbox where generation = 44 and status = 'pending'", "3"},
		line{"worker", "select core.generation_state(1)", "drained"})
}
