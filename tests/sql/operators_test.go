package sql_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// failedRow is a row that failed, with traces of all that a cycle may leave.
const failedRow = `status = 'failed', attempts = 6, last_error = 'HandlerError: a.b: no',
	first_failed_at = o.available_at,
	claimed_at = clock_timestamp() - interval '5 s', handler_failures = '{"a.b": {"failures": 6, "parked": true}}',
		crashes = 2, claimed_by = 'w'`

// setupOperator is setup with generations 3, live, and 4, draining, and n failed events, changed as said.
func setupOperator(t *testing.T, n int, set map[int]string) *database {
	t.Helper()
	d := setup(t)
	exec(t, d.admin, "insert into core.deployments (generation, status) values (3, 'live'), (4, 'draining')")
	d.rows(t, n, failedRow)
	for n, to := range set {
		d.alter(t, n, to)
	}
	return d
}

// refused runs lines that must change nothing.
func (d *database) refused(t *testing.T, lines ...line) {
	t.Helper()
	state := func() string {
		return strings.Join(append(d.versions(t), values[string](t, d.admin,
			"select to_jsonb(a)::text from core.operator_actions a union all select to_jsonb(p)::text from "+
				"core.paused_types p order by 1")...), "\n")
	}
	before := state()
	d.run(t, lines...)
	if after := state(); before != after {
		t.Errorf("something was changed:\n%s", diff(before, after))
	}
}

func (d *database) wantActions(t *testing.T, want ...string) {
	t.Helper()
	d.run(t, line{"", `select action, acted_by, cardinality(event_ids), generation, details from core.operator_actions
		order by acted_at, id`, strings.Join(want, "; ")})
}

func (d *database) history(t *testing.T, n int) (all []map[string]any) {
	t.Helper()
	if err := json.Unmarshal(value[[]byte](t, d.admin, "select failure_history from core.outbox where id = $1", key(n)),
		&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func someIDs(n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("{%d}", i+1)
	}
	return "'{" + strings.Join(ids, ",") + "}'"
}

func TestReplay(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 2,
		map[int]string{1: `failure_history = '[{"reaped_at": "2026-01-01T00:00:00Z", "attempts": 1}]'`})
	before, other, at := d.row(t, 1), d.row(t, 2), value[time.Time](t, d.admin, "select clock_timestamp()")
	b := d.listen(t, "outbox_gen_1", "outbox_gen_3")
	// what was reaped is no cycle
	d.run(t, line{"operator",
		"select core.outbox_replay(p_event_id => '{1}', p_new_generation => 3, p_replayed_by => ' anna ')", "1"})
	d.wantChanges(t, 1, before, at, map[string]string{
		"status": "= 'pending'", "generation": "= 3", "channel": "= 'outbox_gen_3'", "attempts": "= 0",
		"last_error":      "is null",
		"first_failed_at": "is null", "claimed_at": "is null", "claimed_by": "is null", "handler_failures": "= '{}'",
		"crashes":      "= 0",
		"available_at": "between b.at and clock_timestamp()", "failure_history": "-> 0 = '" +
			`{"reaped_at": "2026-01-01T00:00:00Z", "attempts": 1}` + "'",
	})
	d.wantChanges(t, 2, other, at, nil)
	if have := b.received(t, d); have["outbox_gen_3"] != 1 {
		t.Errorf("it notifies %v", have)
	}
	entry := d.history(t, 1)[1]
	if want := map[string]any{
		"cycle": 1.0, "attempts": 6.0, "last_error": "HandlerError: a.b: no", "replayed_by": "anna",
		"first_failed_at": before["first_failed_at"], "failed_at": before["claimed_at"], "replayed_at": entry["replayed_at"],
	}; !maps.Equal(entry, want) || entry["replayed_at"] == nil {
		t.Errorf("history has %v, want %v", entry, want)
	}
	// a second cycle is appended, not written over the first
	d.alter(t, 1, failedRow)
	login := value[string](t, d.session(t, "operator"), "select session_user")
	d.run(t, line{"operator", "select core.outbox_replay('{1}', 4)", "2"},
		line{"", "select h -> 'cycle', h ->> 'replayed_by' from core.outbox, jsonb_array_elements(failure_history) h " +
			"where id = '{1}'", "- -; 1 anna; 2 " + login})
	d.wantActions(t, `replay anna 1 3 {"asked": 1}`, "replay "+login+` 1 4 {"asked": 1}`)
	// a delivered event, by force
	d.alter(t, 2, delivered)
	d.run(t, line{"operator", "select core.outbox_replay('{2}', 3, 'anna', p_force => true)", "1"},
		line{"", `select status, delivered_at, claimed_at, failure_history -> 0 ? 'delivered_at',
			failure_history -> 0 ->> 'failed_at' from core.outbox where id = '{2}'`, "pending - - t -"},
		line{"", "select details from core.operator_actions order by acted_at desc limit 1", `{"asked": 1, "forced": true}`})
	for channel, want := range map[string]string{
		"outbox_gen_1": "outbox_gen_3", "outbox_gen_1_slow": "outbox_gen_3_slow", "outbox_gen_1_a_1": "outbox_gen_3_a_1",
		"outbox_default": "outbox_gen_3_slow", "outbox_gen_1_": "outbox_gen_3_slow", // the type's class
		"outbox_gen_1_" + strings.Repeat("x", 50): "outbox_gen_3_slow",
	} {
		d.rows(t, 1, failedRow+", event_type = $1, channel = $2", classType, channel)
		d.run(t, line{"operator", "select core.outbox_replay('{1}', 3)", "1"},
			line{"", "select channel from core.outbox", want})
	}
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 9, map[int]string{
		2: "status = 'pending', available_at = clock_timestamp() - interval '1 s'",
		3: "status = 'pending', available_at = clock_timestamp() + interval '1 h'",
		4: "status = 'in_flight', claim_token = gen_random_uuid(), claimed_by = 'worker seven'",
		5: "status = 'delivered', delivered_at = clock_timestamp()",
		6: "deleted_at = clock_timestamp(), discarded_at = clock_timestamp()", 7: "deleted_at = clock_timestamp()",
		8: "event_type = '" + unconsumedType + "'",
	})
	exec(t, d.admin, "insert into core.outbox select (jsonb_populate_record(o, jsonb_build_object('id', $1::uuid, "+
		"'idempotency_key', 'duplicate'))).* from core.outbox o where o.id = $2", key(10), key(9))
	d.alter(t, 10, "id = '"+key(9).String()+"', occurred_at = occurred_at + interval '1 s'") // two events of one id
	// the preview refuses the same
	for _, call := range []string{"outbox_replay(", "outbox_replay_preview("} {
		for _, c := range []struct{ arguments, want string }{
			{"null, 3", "SP030 event_id ~ null"}, {"'{77}', 3", "SP031 event_id ~ is not in core.outbox"},
			{"'{2}', 3, p_occurred_at => '2020-01-01'", "SP031 event_id ~ 2020-01-01"},
			{"'{9}', 3", "SP035 event_id ~ occurred_at"}, {"'{2}', 3", "SP032 event_id ~ is pending, not failed"},
			{"'{3}', 3", "SP032 event_id ~ core.outbox_retry_now"},
			{"'{4}', 3", "SP032 event_id ~ worker seven"}, {"'{4}', 3, p_force => true", "SP032 event_id ~ in_flight"},
			{"'{5}', 3", "SP032 event_id ~ p_force => true"},
			{"'{6}', 3", "SP033 event_id ~ core.outbox_undiscard"}, {"'{7}', 3", "SP033 event_id ~ past its retention"},
			{"'{7}', 3, p_force => true", "SP033 event_id ~ past its retention"}, {"'{8}', 3", "SP036 event_id"},
		} {
			d.refused(t, line{"operator", "select core." + call + c.arguments + ")", c.want})
		}
	}
	d.refused(t,
		line{"operator", "select core.outbox_replay('{1}', null)", "SP019 generation ~ the highest live one is 3"},
		line{"operator", "select core.outbox_replay('{1}', 77)", "SP019 generation ~ 77 is not registered"},
		line{"operator", "select core.outbox_replay('{1}', 2)", "SP019 generation ~ 2 is retired"},
		line{"operator", "select core.outbox_replay('{1}', 3, ' ')", "SP030 acted_by ~ blank"},
		line{"operator", "select core.outbox_replay('{1}', 3, repeat('x', 257))", "SP030 acted_by ~ 257"},
		line{"operator", "select core.outbox_replay_many(null, 3)", "SP030 event_ids ~ 1000"},
		line{"operator", "select core.outbox_replay_many(array_fill(gen_random_uuid(), array[1001]), 3)",
			"SP030 event_ids ~ not 1001"},
		line{"operator", "select core.outbox_replay_many(array[gen_random_uuid()], 3, 'a', '{}')",
			"SP030 occurred_ats ~ 0 for 1"},
		line{"worker", "select core.outbox_replay('{1}', 3)", denied},
		// of two events of one id neither is replayed, unless its time is given
		line{"operator", "select core.outbox_replay_many('{{9}}', 3)", ""},
	)
	d.run(t, line{"operator",
		"select core.outbox_replay('{9}', 3, p_occurred_at => (select max(occurred_at) from core.outbox where id = '{9}'))",
		"1"},
		line{"", "select status from core.outbox where id = '{9}' order by occurred_at", "failed; pending"})
}

// Bulk replay takes what is failed and free, with one record and one notification for each channel.
func TestReplayMany(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 9, map[int]string{
		2: "status = 'pending'", 3: "status = 'delivered'", 4: "deleted_at = now(), discarded_at = now()",
		6: "channel = 'outbox_gen_1_slow'",
		7: "claimed_at = clock_timestamp() + interval '1 h'" /* failed again since */, 8: "event_type = '" + unconsumedType +
			"'",
	})
	d.run(t, line{"superuser", "begin; select from core.outbox where id = '{5}' for update", ""})
	b := d.listen(t, "outbox_gen_1", "outbox_gen_3", "outbox_gen_3_slow")
	d.run(t, line{"operator", "select event_id from core.outbox_replay_many('{{9},{1},{1},{77}}' || " + someIDs(9) +
		"::uuid[], 3, 'anna', p_settled_before => clock_timestamp()) order by 1",
		fmt.Sprintf("%s; %s; %s", key(1), key(6), key(9))})
	if have, want := b.received(t, d), (map[string]int{"outbox_gen_3": 1, "outbox_gen_3_slow": 1}); !maps.Equal(have,
		want) {
		t.Errorf("it notifies %v, want %v", have, want)
	}
	d.wantActions(t, `replay anna 3 3 {"asked": 13}`)
	// by force, and once: what was delivered later is not meant
	const force = "select count(*) from core.outbox_replay_many('{{3},{4}}', 3, 'anna', null, " +
		"nullif(current_setting('test.as_of', true), '')::timestamptz, true)"
	const now = "select set_config('test.as_of', clock_timestamp()::text, false)"
	d.run(t, line{"operator", force, "1"}, line{"operator", now, ""})
	d.alter(t, 3, delivered)
	d.run(t, line{"operator", force, "0"}, line{"operator", now, ""}, line{"operator", force, "1"},
		line{"operator", force, "0"}, line{"operator", "select event_id from core.outbox_replay_many('{}', 3)", ""},
		line{"", "select count(*) from core.operator_actions", "3"})
}

// The second of two operators waits for the first, and is told.
func TestReplayOfWhatIsBeingReplayed(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 1, nil)
	d.run(t, line{"operator", "begin; select core.outbox_replay('{1}', 3, 'anna')", "1"})
	second := d.later(t, "operator 2", "select core.outbox_replay('{1}', 3, 'bert')")
	d.run(t, line{"operator", "commit", ""})
	if have := second(); have != "SP032 event_id" {
		t.Errorf("the second is answered with %q", have)
	}
	d.run(t, line{"", "select jsonb_path_query_array(failure_history, '$[*].replayed_by') from core.outbox", `["anna"]`})
}

// A preview says handler by handler what would run, by what live workers have and core.event_handled knows.
func TestReplayPreview(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 5, map[int]string{2: "target = 'worlds'", 3: "target = 'core'", 4: "event_type = '" +
		platformType + "'"})
	want := func(n int, lines ...string) {
		t.Helper()
		d.run(t, line{"operator",
			fmt.Sprintf("select concat_ws(' ', handler, would_run, handled_at is not null, note) from "+
				"core.outbox_replay_preview('{%d}', 3)", n), strings.Join(lines, "; ")})
	}
	register := func(as string, generation int, handlers string) {
		t.Helper()
		d.run(t, line{as, fmt.Sprintf("select core.worker_register(gen_random_uuid(), %d, 'w', '%s')", generation, handlers),
			""})
	}
	const unknown = "f f no worker of generation 3 is live: what will run is not known"
	want(1, unknown)
	register("worker 1", 1, `{"{card}": ["worlds.old"]}`)
	want(1, unknown)
	register("worker 2", 3, `{"{card}": ["platform.one", "worlds.two"]}`)
	register("worker 3", 3, `{"{card}": ["platform.one", "worlds.two"]}`) // a replica
	register("worker 4", 3, `{"worlds.thing.slow": ["worlds.three"]}`)
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		values ('worlds.two', 'k1', $1, 'a.b', 'operational'), ('worlds.old', 'k5', $1, 'a.b', 'operational')`, key(1))
	want(1, "platform.one t f", "worlds.two f t")
	want(2, "worlds.two t f")
	want(3, "f f no live worker of generation 3 handles "+cardType+" for target core")
	want(4, "f f no live worker of generation 3 handles platform.thing.happened")
	want(5, "platform.one t f", "worlds.two t f")
	d.refused(t, line{"operator", fmt.Sprintf("select count(*) from core.outbox_replay_preview_many('{%s,%s,%s,%s}', 3)",
		key(1), key(2), key(4), key(77)), "4"})
	d.run(t, line{"operator", "select core.event_type_pause('{card}', 3, 'anna')", ""},
		line{"operator", "select note ~ 'paused in generation 3 since .* by anna' from core.outbox_replay_preview('{2}', 3)",
			"t"})
	// a worker that is gone is not counted on
	d.alter(t, 5, "event_type = $1", classType)
	want(5, "worlds.three t f")
	d.leave(t, "worker 4")
	want(5, "f f no live worker of generation 3 handles worlds.thing.slow")
}

func TestDiscardAndUndiscard(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 2, nil)
	before, other, at := d.row(t, 1), d.row(t, 2), value[time.Time](t, d.admin, "select clock_timestamp()")
	d.run(t, line{"operator", "select core.outbox_discard('{1}', ' anna ', ' stale ')", ""})
	d.wantChanges(t, 1, before, at, map[string]string{
		"deleted_at": "between b.at and clock_timestamp()", "discarded_at": "= o.deleted_at",
		"failure_history": "-> 0 ->> 'discarded_by' = 'anna'",
	})
	if entry := d.history(t, 1)[0]; len(entry) != 3 || entry["reason"] != "stale" || entry["discarded_at"] == nil {
		t.Errorf("history has %v", entry)
	}
	d.wantChanges(t, 2, other, at, nil)
	before = d.row(t, 1)
	d.run(t, line{"operator", "select core.outbox_undiscard('{1}', 'bert')", ""})
	d.wantChanges(t, 1, before, at, map[string]string{
		"deleted_at": "is null", "discarded_at": "is null", "undiscarded_at": "between b.at and clock_timestamp()",
		"failure_history": "-> 1 ->> 'undiscarded_by' = 'bert'",
	})
	d.wantActions(t, `discard anna 1 - {"asked": 1, "reason": "stale"}`, `undiscard bert 1 - {"asked": 1}`)
	d.run(t, line{"operator", "select core.outbox_discard('{1}', 'anna')", ""},
		line{"", "select undiscarded_at from core.outbox where id = '{1}'", "-"},
		line{"operator", "select core.outbox_undiscard('{1}', null)", ""},
		line{"operator", "select core.outbox_discard('{1}', null)", ""},
		line{"", "select h ->> 'undiscarded_by', h ->> 'discarded_by' from core.outbox, " +
			"jsonb_array_elements(failure_history) with ordinality e(h, n) where id = '{1}' and n > 3 order by n",
			value[string](t, d.session(t, "operator"), "select session_user || ' -; - ' || session_user")},
		line{"operator", "select core.outbox_undiscard('{1}', 'bert')", ""},
		line{"operator", "select core.outbox_replay('{1}', 3)", "1"})
}

func TestDiscardRefuses(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 9, map[int]string{
		2: "status = 'pending'", 3: "status = 'in_flight', claim_token = gen_random_uuid()", 4: "status = 'delivered'",
		5: "deleted_at = clock_timestamp()",
		6: "deleted_at = clock_timestamp(), discarded_at = clock_timestamp()",
		7: "deleted_at = clock_timestamp() - interval '7 days', discarded_at = clock_timestamp() - interval '7 days'",
		9: "id = '" + key(8).String() + "'",
	})
	for _, c := range []struct{ call, want string }{
		{"discard('{77}', 'anna')", "SP031 event_id ~ not in core.outbox"},
		{"discard('{2}', 'anna')", "SP032 event_id ~ is pending"},
		{"discard('{3}', 'anna')", "SP032 event_id ~ is in_flight"},
		{"discard('{4}', 'anna')", "SP032 event_id ~ is delivered"},
		{"discard('{5}', 'anna')", "SP033 event_id ~ retention"},
		{"discard('{6}', 'anna')", "SP033 event_id ~ was discarded"},
		{"discard('{8}', 'anna')", "SP035 event_id ~ occurred_at"}, {"discard('{1}', '')", "SP030 acted_by ~ blank"},
		{"discard('{1}', 'anna', ' ')", "SP030 reason ~ blank"},
		{"discard('{1}', 'anna', repeat('x', 1025))", "SP030 reason ~ 1025"},
		{"discard_many(array_fill(gen_random_uuid(), array[1001]), 'anna')", "SP030 event_ids ~ 1001"},
		{"undiscard('{77}', 'anna')", "SP031 event_id ~ not in core.outbox"},
		{"undiscard('{1}', 'anna')", "SP034 event_id ~ is not discarded, it is failed"},
		{"undiscard('{2}', 'anna')", "SP034 event_id ~ it is pending"},
		{"undiscard('{5}', 'anna')", "SP033 event_id ~ past its retention"},
		{"undiscard('{7}', 'anna')", "SP033 event_id ~ 7 days"}, {"undiscard('{6}', ' ')", "SP030 acted_by ~ blank"},
		{"undiscard('{8}', 'anna')", "SP035 event_id ~ occurred_at"},
	} {
		d.refused(t, line{"operator", "select core.outbox_" + c.call, c.want})
	}
	// in bulk they are passed
	d.run(t, line{"superuser", "begin; select from core.outbox where id = '{1}' for update", ""},
		line{"", "update core.outbox set status = 'failed', claim_token = null where id in ('{2}', '{3}')", ""},
		line{"", "update core.outbox set claimed_at = clock_timestamp() + interval '1 h' where id = '{3}'", ""})
	both := func(call, want string) line {
		return line{"operator", "select event_id from core.outbox_" + call + " order by 1", want}
	}
	discard, undiscard := "discard_many("+someIDs(9)+", 'anna', 'why', p_failed_before => clock_timestamp())",
		"undiscard_many("+someIDs(9)+", 'bert')"
	two := key(2).String()
	exec(t, d.admin, "update core.outbox set discarded_at = null where id = $1", key(6))
	d.run(t, both(discard, two), both(undiscard, two))
	d.refused(t, line{"operator", "select event_id from core.outbox_" + undiscard, ""})
	d.wantActions(t, `discard anna 1 - {"asked": 9, "reason": "why"}`, `undiscard bert 1 - {"asked": 9}`)
}

func TestRetryNow(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	d.rows(t, 9, "available_at = clock_timestamp() + interval '1 h', attempts = 3, last_error = 'E: a.b: no', "+
		"handler_failures = '{\"a.b\": {\"failures\": 6, \"parked\": true}}'")
	for n, set := range map[int]string{
		2: "available_at = clock_timestamp() - interval '1 s'", 3: failedRow,
		4: "status = 'in_flight', claim_token = gen_random_uuid()", 5: "status = 'delivered'",
		6: "deleted_at = clock_timestamp()", 9: "channel = 'outbox_gen_1_slow'",
	} {
		d.alter(t, n, set)
	}
	d.run(t, line{"superuser", "begin; select from core.outbox where id = '{7}' for update", ""})
	for _, c := range []struct{ arguments, want string }{
		{"'{77}'", "SP031 event_id ~ not in core.outbox"}, {"'{2}'", "SP034 event_id ~ is due already"},
		{"'{3}'", "SP032 event_id ~ core.outbox_replay("},
		{"'{4}'", "SP032 event_id ~ in_flight"}, {"'{5}'", "SP032 event_id ~ delivered"},
		{"'{6}'", "SP033 event_id ~ retention"},
		{"'{7}'", "SP032 event_id ~ another session is changing it"}, {"'{1}', ''", "SP030 acted_by ~ blank"},
	} {
		d.refused(t, line{"operator", "select core.outbox_retry_now(" + c.arguments + ")", c.want})
	}
	d.refused(t, line{"operator", "select core.outbox_retry_now_many(array_fill(gen_random_uuid(), array[1001]))",
		"SP030 event_ids ~ 1001"})
	b, before, at := d.listen(t, "outbox_gen_1", "outbox_gen_1_slow"), d.row(t, 1),
		value[time.Time](t, d.admin, "select clock_timestamp()")
	d.run(t, line{"operator", "select core.outbox_retry_now('{1}', 'anna')", ""})
	// a parked handler stays parked
	d.wantChanges(t, 1, before, at, map[string]string{"available_at": "between b.at and clock_timestamp()"})
	d.run(t, line{"operator", "select event_id from core.outbox_retry_now_many(" + someIDs(9) + ", 'bert') order by 1",
		fmt.Sprintf("%s; %s", key(8), key(9))})
	if have, want := b.received(t, d), (map[string]int{"outbox_gen_1": 2, "outbox_gen_1_slow": 1}); !maps.Equal(have,
		want) {
		t.Errorf("it notifies %v", have)
	}
	d.wantActions(t, `retry_now anna 1 - {"asked": 1}`, `retry_now bert 2 - {"asked": 9}`)

	// a row that a worker has claimed keeps the time that its dispatch is known by
	d.run(t, line{"superuser", "rollback", ""})
	d.rows(t, 1, "")
	const retry = "select core.outbox_retry_now('{1}')"
	d.run(t, line{"worker",
		"begin; select set_config('test.claimed', available_at::text, false) from core.outbox_claim(1, '{card}', 1, " +
			"'-infinity', gen_random_uuid(), false)", ""})
	d.refused(t, line{"operator", retry, "SP034 event_id ~ is due already"})
	occurred := value[time.Time](t, d.admin, "select occurred_at from core.outbox")
	d.run(t, line{"worker", "select core.outbox_retry('{1}', '" + occurred.Format(time.RFC3339Nano) +
		"', current_setting('test.claimed')::timestamptz, 60, 'E: a.b: no', '{}', true)", "t"})
	d.refused(t, line{"operator", retry, "SP034 event_id ~ is due already"}) // until that is committed, the worker has it
	d.run(t, line{"worker", "commit", ""}, line{"operator", retry, ""},
		line{"", "select available_at <= clock_timestamp(), attempts from core.outbox", "t 1"})
}

// Nothing of a paused type is claimed, leased or seen, and all else is.
func TestPauseStopsEveryClaim(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	d.rows(t, 8, "")
	for n, set := range map[int]string{2: "crashes = 1", 3: "available_at = clock_timestamp() + interval '1 h'",
		4: "event_type = '" + platformType + "'", 5: "generation = 3"} {
		d.alter(t, n, set)
	}
	for call, want := range map[string]string{ // of the card in generation 1
		"core.outbox_claim(1, '{card}', 9, '-infinity', gen_random_uuid(), false)":                                "4",
		"core.outbox_claim(1, '{card}', 9, '-infinity', gen_random_uuid(), true)":                                 "1",
		"core.outbox_lease(1, '{card}', 9)":                                                                       "5",
		"core.outbox_lease(1, '{card}', 9, p_crashed => true)":                                                    "1",
		"core.outbox_lease(1, '{card}', 9, p_crashed => false)":                                                   "4",
		"core.outbox_poll(1, '{{card}}', '{-infinity}') where oldest_due is not null and next_in > 0 and crashed": "1",
	} {
		count := func(sql, want string) {
			t.Helper()
			d.run(t, line{"worker", "begin; select count(*) from " + sql, want}, line{"worker", "rollback", ""})
		}
		others := []string{strings.Replace(call, "{card}", platformType, 1), strings.Replace(call, "(1,", "(3,", 1)}
		before := make([]string, 2)
		for i, other := range others {
			before[i], _ = d.ask(t, "worker", "begin; select count(*) from "+other)
			d.run(t, line{"worker", "rollback", ""})
		}
		count(call, want)
		d.run(t, line{"operator", "select core.event_type_pause('{card}', 1)", ""})
		count(call, "0")
		count(others[0], before[0])
		count(others[1], before[1])
		d.run(t, line{"operator", "select core.event_type_resume('{card}', 1)", ""})
		count(call, want)
	}
	// the floor does not rise past what waits for a pause to end
	d.rows(t, 3, "")
	d.run(t, line{"operator", "select core.event_type_pause('{card}', 1)", ""},
		line{"superuser", "select oldest = (select min(available_at) from core.outbox) from core.outbox_watermark(1, " +
			"'{card}', '-infinity')", "t"})
}

func TestPauseAndResumeRefuse(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 1, map[int]string{1: "status = 'pending', channel = 'outbox_gen_3_old', event_type = '" +
		classType + "', generation = 3"})
	d.run(t, line{"operator", "select core.event_type_pause('" + classType + "', 3, ' anna ', ' because ')", ""},
		line{"operator", "select event_type, generation, paused_by, reason from core.paused_types", classType +
			" 3 anna because"})
	for _, c := range []struct{ call, want string }{
		{"pause('worlds.thing.slow', 3)", "SP034 event_type ~ by anna"},
		{"pause('a.b', 3)", "SP030 event_type ~ 'a.b' is not registered"},
		{"pause(null, 3)", "SP030 event_type ~ not registered"},
		{"pause('worlds.thing.slow', 9)", "SP019 generation ~ not registered"},
		{"pause('worlds.thing.slow', 2)", "SP019 generation ~ retired"},
		{"pause('worlds.thing.slow', null)", "SP019 generation ~ highest live one is 3"},
		{"pause('worlds.thing.slow', 4, ' ')", "SP030 acted_by ~ blank"},
		{"pause('worlds.thing.slow', 4, 'a', ' ')", "SP030 reason ~ blank"},
		{"resume('worlds.thing.slow', 4)", "SP034 event_type ~ is not paused in generation 4"},
		{"resume(null, null)", "SP034 event_type ~ not paused"},
		{"resume('worlds.thing.slow', 3, '')", "SP030 acted_by ~ blank"},
	} {
		d.refused(t, line{"operator", "select core.event_type_" + c.call, c.want})
	}
	d.refused(t, line{"worker", "select core.event_type_pause('worlds.thing.slow', 3)", denied})
	// it wakes the workers that listen for the type by its contract, and those of channels on which something waits
	b := d.listen(t, "outbox_gen_3_slow", "outbox_gen_3_old", "outbox_gen_3")
	d.run(t, line{"operator", "select core.event_type_resume('worlds.thing.slow', 3, 'bert')", ""})
	if have := b.received(t, d); have["outbox_gen_3_slow"] != 1 || have["outbox_gen_3_old"] != 1 {
		t.Errorf("it notifies %v", have)
	}
	d.wantActions(t, `pause anna 0 3 {"reason": "because", "event_type": "`+classType+`"}`,
		`resume bert 0 3 {"event_type": "`+classType+`"}`)
}

// What is in flight is settled, what comes back waits, and publishing goes on.
func TestPauseStopsNothingElse(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	d.rows(t, 3, "")
	const named = "(array[id], array[occurred_at], array[claim_token]) where status = 'in_flight' and payload ->> 'n' = "
	d.run(t, line{"superuser", "select count(*) from core.outbox_lease(1, '{card}', 3)", "3"},
		line{"operator", "select core.event_type_pause('{card}', 1, 'anna')", ""},
		line{"superuser", "select count(*) from core.outbox, core.outbox_deliver_leased" + named + "'1'", "1"},
		line{"superuser", "select count(*) from core.outbox, core.outbox_release" + named + "'2'", "1"})
	d.alter(t, 3, runOut)
	d.run(t, line{"worker", "select core.outbox_reap()", ""}, line{"worlds", publishInto(1), ""},
		line{"", "select status, count(*) from core.outbox group by 1 order by 1", "delivered 1; pending 3"},
		line{"worker", "select count(*) from core.outbox_lease(1, '{card}', 9)", "0"},
		line{"operator", "select core.event_type_resume('{card}', 1)", ""},
		line{"worker", "select count(*) from core.outbox_lease(1, '{card}', 9)", "3"})
}

// Who consumes a type is asked of the generation that it is replayed into, as when it is published into it: a newer
// build may have a handler for what an older one has none for, and the other way round.
func TestReplayIntoTheGenerationThatConsumes(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	for _, older := range []bool{false, true} {
		exec(t, d.admin, "update core.event_types set registered_by = 1, consumed_in = '{}' where event_type = $1", cardType)
		for generation, consumed := range map[int]bool{1: older, 3: !older} {
			exec(t, d.admin, `select core.event_types_register($1,
				(select jsonb_agg(to_jsonb(t) || jsonb_build_object('consumed', $2::boolean))
				from core.event_types t where t.event_type = $3))`, generation, consumed, cardType)
		}
		for generation, consumed := range map[int]bool{1: older, 3: !older} {
			published, noted, previewed, many, replayed := "delivered", "t", "SP036 event_id", "0", "SP036 event_id"
			if consumed {
				published, noted, previewed, many, replayed = "pending", "f", "", "1", "1"
			}
			d.rows(t, 2, failedRow)
			d.run(t, line{"", publishInto(generation), ""},
				line{"", "select status from core.outbox order by created_at desc limit 1", published})
			for call, want := range map[string]string{
				"bool_or(note like '%consumes its type%') from core.outbox_replay_preview_many('{{1}}', $)": noted,
				"core.outbox_replay_preview('{1}', $)":                                                      previewed,
				"count(*) from core.outbox_replay_many('{{1}}', $)":                                         many,
				"core.outbox_replay('{2}', $)":                                                              replayed,
			} {
				d.run(t, line{"operator", "begin; select " + strings.Replace(call, "$", fmt.Sprint(generation), 1), want},
					line{"operator", "rollback", ""})
			}
		}
	}
}

// A history is bounded, in entries and in bytes, and a replay always in it: what was reaped goes first, then the oldest
// replays.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	replays := func(n int, lastError string) {
		t.Helper()
		exec(t, d.admin, fmt.Sprintf(`do $$ begin for i in 1..%d loop
			update core.outbox o set %s, last_error = %s;
			perform core.outbox_replay('%s', 3);
		end loop; end $$`, n, strings.Replace(failedRow, "last_error = 'HandlerError: a.b: no',", "", 1), lastError, key(1)))
	}
	// entries, how many were omitted, the first and last cycle, and bytes of the history
	const history = `select jsonb_array_length(failure_history), failure_history -> 0 -> 'omitted',
		failure_history -> 1 -> 'cycle', failure_history -> -1 -> 'cycle',
		failure_history @? '$[*].reaped_at', octet_length(failure_history::text) between %d and 262144 from core.outbox`
	d.rows(t, 1, `failure_history = (select jsonb_agg(case when i % 2 = 0 then jsonb_build_object('reaped_at',
		i) else jsonb_build_object('cycle', i, 'replayed_at', i) end order by i)
		from generate_series(1, 100) i)`)
	replays(60, "'E: a.b: no'")
	// 50 replays were there, up to cycle 99; 60 came; 11 of the 110 had to go
	d.run(t, line{"", fmt.Sprintf(history, 0), "100 61 23 159 f t"})
	d.rows(t, 1, `failure_history = '[{"reaped_at": "x"}]'`)
	replays(36, "repeat('e', 8000)")
	d.run(t, line{"", fmt.Sprintf(strings.Replace(history, "select ",
		"select (failure_history -> 0 -> 'omitted')::int + jsonb_array_length(failure_history) = 38, ", 1), 200000), "t *"},
		line{"", "select failure_history -> -1 -> 'cycle' from core.outbox", "36"})
	// and with what the reaper adds to it, whose reason is long
	d.rows(t, 1, "")
	replays(36, "repeat('ä', 4000)")
	d.run(t, line{"operator", "select core.prior_replays(failure_history) from core.outbox", "36"})
	d.alter(t, 1, expired)
	d.alter(t, 1, "lease_handler = repeat('ä', 20000), lease_seconds = 0.25")
	if lines := reap(t, d.admin, 50, nil); len(lines) != 1 || !lines[0].Reaped {
		t.Fatalf("reaped is %+v", lines)
	}
	d.run(t, line{"", `select octet_length(failure_history::text) <= 262144, failure_history -> -1 ? 'reaped_at',
		failure_history -> -2 -> 'cycle',
		(failure_history -> 0 -> 'omitted')::int + jsonb_array_length(failure_history) from core.outbox`, "t t 36 38"})
	// whatever was written by hand
	d.rows(t, 1, failedRow+`, failure_history =
		'[1, "omitted", "reaped_at", null, {"cycle": "x"}, {"cycle": 1e30}, {"omitted": "y"}, []]'`)
	d.run(t, line{"operator", "select core.outbox_replay('{1}', 3)", ""},
		line{"operator", "select core.prior_replays(failure_history), jsonb_array_length(failure_history) from core.outbox",
			"1000000 9"})
}
