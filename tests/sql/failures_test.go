package sql_test

import (
	"fmt"
	"strings"
	"testing"
)

func addAttempts(n int, handlers ...string) string {
	var all []string
	for _, h := range handlers {
		all = append(all, fmt.Sprintf(`{"handler_name": "%s", "started_ago": 1, "duration_ms": 5, "error_class": "E",
			"error": "no 7", "stack": "s", "trace_id": "t", "group_id": "g %[1]s", "message": "no #"}`, h))
	}
	return fmt.Sprintf(`select core.failed_attempts_add('{%d}', o.occurred_at, 'w', '[%s]')
		from core.outbox o where o.id = '{%[1]d}'`, n, strings.Join(all, ","))
}

// Of a handler's failed attempts the latest ten stay. They are deleted with the event, and a group of errors when it
// was not seen for as long as an event is kept.
func TestFailedAttempts(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 2, map[int]string{
		1: "event_type = 'worlds.thing.slow', failure_history = '[{\"cycle\": 1}, {\"cycle\": 2}]'"})
	for range 12 {
		exec(t, d.admin, filled(addAttempts(1, "platform.a", "worlds.b")))
	}
	d.run(t,
		line{"", `select handler_name, count(*), min(attempt), max(attempt), min(cycle) from core.failed_attempts
			group by 1`, "platform.a 10 3 12 2; worlds.b 10 3 12 2"},
		line{"", `select worker, duration_ms, error_class, error, stack, trace_id, group_id, clock_timestamp() - started_at
			between interval '1 second' and interval '1 minute' from core.failed_attempts limit 1`,
			"w 5 E no 7 s t g platform.a t"},
		line{"", "select group_id, handler_name, error_class, message, first_generation from core.error_groups order by 1",
			"g platform.a platform.a E no # 1; g worlds.b worlds.b E no # 1"},
		line{"", strings.ReplaceAll(addAttempts(9, "a.b"), "from core.outbox o where o.id = '{9}'",
			"from (select now() as occurred_at) o"), ""},
		line{"", "select count(*) from core.failed_attempts where event_id = '{9}'", "0"})
	exec(t, d.admin, filled(addAttempts(2, "platform.a")))
	exec(t, d.admin, `insert into core.error_groups (group_id, handler_name, error_class, message, first_generation, note,
		muted_until) values ('noted', 'h', 'E', 'm', 1, 'known', null),
		('muted', 'h', 'E', 'm', 1, null, now() + interval '1 day')`)
	exec(t, d.admin, "update core.error_groups set last_seen = now() - interval '100 days' "+
		"where group_id <> 'g platform.a'")
	d.alter(t, 1, "deleted_at = now() - interval '30 days', status = 'delivered', delivered_at = now()")
	d.run(t, line{"", "select rows from core.retention_delete_outbox(null, 10)", "1"},
		line{"", "select count(*), min(event_id::text) from core.failed_attempts", "1 {2}"},
		line{"", "select group_id from core.error_groups order by 1", "g platform.a; muted; noted"})
}

func TestErrorGroupsAreNotedAndMuted(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 1, nil)
	exec(t, d.admin, filled(addAttempts(1, "a.b")))
	d.run(t, line{"operator", "select core.error_group_note('g a.b', ' known ', 'anna')", ""},
		line{"operator", "select core.error_group_mute('g a.b', now() + interval '1 day', 'anna')", ""},
		line{"", "select note, noted_by, muted_until > now() from core.error_groups", "known anna t"},
		line{"operator", "select core.error_group_note('g a.b', null)", ""},
		line{"operator", "select core.error_group_mute('g a.b', null)", ""},
		line{"", "select note, noted_by, muted_until from core.error_groups", "- - -"})
	d.refused(t, line{"operator", "select core.error_group_note('x', 'a')", "SP031 group"},
		line{"operator", "select core.error_group_note('g a.b', ' ')", "SP030 note"},
		line{"operator", "select core.error_group_note('g a.b', 'a', ' ')", "SP030 acted_by"},
		line{"operator", "select core.error_group_mute('x', now() + interval '1 day')", "SP031 group"},
		line{"operator", "select core.error_group_mute('g a.b', now() - interval '1 day')", "SP030 until"},
		line{"operator", "select core.error_group_mute('g a.b', now() + interval '400 days')", "SP030 until"},
		line{"operator", "select core.error_group_mute('g a.b', 'infinity')", "SP030 until"})
}

// A handler that acts outside and had begun is run again by a replay only if its policy or the operator says so. One
// that had not begun runs.
func TestReplayOfHandlersThatActOutside(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 3, nil)
	exec(t, d.admin, `select core.worker_register(gen_random_uuid(), 3, 'w', jsonb_build_object($1::text,
		'["platform.allow", "platform.ask", "platform.plain", "platform.skip"]'::jsonb), '{"platform.allow": {"effect":
		"sends mail", "on_replay": "allow"}, "platform.ask": {"effect": "calls", "on_replay": "ask"},
		"platform.skip": {"effect": "pays", "on_replay": "skip"}}')`, cardType)
	begun := []string{"platform.allow", "platform.ask", "platform.plain", "platform.skip"}
	exec(t, d.admin, filled(addAttempts(1, begun...)))
	exec(t, d.admin, filled(addAttempts(2, "platform.skip")))
	preview := "select handler, would_run, begun, effect, on_replay from core.outbox_replay_preview('{1}', 3)"
	d.run(t, line{"operator", preview, "platform.allow t t sends mail allow; platform.ask t t calls ask; " +
		"platform.plain t t - allow; platform.skip t t pays skip"})
	d.refused(t, line{"operator", "select core.outbox_replay('{1}', 3)", "SP037 handler"},
		line{"operator", "select count(*) from core.outbox_replay_many('{{1},{3}}', 3)", "SP037 handler"})
	d.run(t, line{"operator", "select core.outbox_replay('{1}', 3, 'anna', p_run => '{platform.ask}')", "1"},
		line{"operator", "select core.outbox_replay('{2}', 3, 'anna', p_run => '{platform.skip}')", "1"},
		line{"operator", "select core.outbox_replay('{3}', 3, 'anna', p_skip => '{platform.ask}')", "1"}, // it never began
		// no worker of generation 4 has registered its handlers yet: the policies of 3 count
		line{"", "select handler_name, on_replay from core.begun_handlers('{{1}}', array(select occurred_at " +
			"from core.outbox where id = '{1}'), 4) order by 1",
			"platform.allow allow; platform.ask ask; platform.plain allow"},
		line{"", "select handler_name, event_id::text, outcome, skipped_by from core.event_handled",
			"platform.skip {1} skipped anna"})
	d.alter(t, 1, failedRow)
	d.run(t,
		line{"operator", "select core.outbox_replay('{1}', 3, 'bert', p_skip => '{platform.ask,platform.allow}')", "2"},
		line{"", "select handler_name, outcome, skipped_by from core.event_handled order by 1",
			"platform.allow skipped bert; platform.ask skipped bert; platform.skip skipped anna"})
}

// What a dead worker ran is kept as an attempt: of the handlers that act outside and had begun, or else of the row.
func TestDeadWorkersLeaveAttempts(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	d.rows(t, 3, "")
	d.died(t, worker1, 1)
	exec(t, d.admin, "update core.claim_journal set handlers = '{platform.mailer}'")
	d.died(t, worker2, 2)
	d.alter(t, 3, strings.ReplaceAll(expired, "worlds.a", "platform.sender"))
	reapAll(t, d.login(t, "spectral_worker"), 10)
	d.run(t, line{"", `select event_id::text, handler_name, error_class, group_id, duration_ms >= 0, worker <> ''
		from core.failed_attempts order by 1, 2`, "{1} platform.mailer WorkerDied WorkerDied t t; " +
		"{2} outbox WorkerDied WorkerDied t t; {3} platform.sender LeaseExpired LeaseExpired t t"})
}
