package database_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

// failedRow is a row that failed, with traces of all that a cycle may leave.
const failedRow = `status = 'failed', attempts = 6, last_error = 'HandlerError: a.b: no', first_failed_at = o.available_at,
	claimed_at = clock_timestamp() - interval '5 s', handler_failures = '{"a.b": {"failures": 6, "parked": true}}', crashes = 2, claimed_by = 'w'`

// setupOperator is setup with generations 3, live, and 4, draining, and a connection of an operator.
func setupOperator(t *testing.T) (database, *pgx.Conn) {
	t.Helper()
	d := setup(t)
	exec(t, d.admin, "insert into core.deployments (generation, status) values (3, 'live'), (4, 'draining')")
	return d, d.login(t, "spectral_operator")
}

// refusal is a call that must be refused.
type refusal struct {
	name, sql string
	code      string
	column    string
	says      string // part of message or hint
}

// wantRefused checks that calls are refused, and change nothing.
func (d database) wantRefused(t *testing.T, conn *pgx.Conn, refusals ...refusal) {
	t.Helper()
	state := func() []string {
		return append(d.versions(t), values[string](t, d.admin, "select to_jsonb(a)::text from core.operator_actions a union all select to_jsonb(p)::text from core.paused_types p order by 1")...)
	}
	before := state()
	for _, c := range refusals {
		_, err := conn.Exec(deadline(t), c.sql)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case !ok:
			t.Errorf("%s: %v, want a refusal", c.name, err)
		case pg.Code != c.code || pg.ColumnName != c.column || !strings.Contains(pg.Message+" "+pg.Hint, c.says):
			t.Errorf("%s: %s of %q: %s; %s; want %s of %q with %q", c.name, pg.Code, pg.ColumnName, pg.Message, pg.Hint, c.code, c.column, c.says)
		}
	}
	if after := state(); !slices.Equal(before, after) {
		t.Errorf("something was changed:\n%s", diff(strings.Join(before, "\n"), strings.Join(after, "\n")))
	}
}

// actions are the rows of core.operator_actions, oldest first, without ids and times.
func (d database) actions(t *testing.T) []string {
	t.Helper()
	return values[string](t, d.admin, `select concat_ws(' ', action, acted_by, cardinality(event_ids), generation, details) from core.operator_actions order by acted_at, id`)
}

// history is failure_history of the n-th row.
func (d database) history(t *testing.T, n int) (all []map[string]any) {
	t.Helper()
	if err := json.Unmarshal(value[[]byte](t, d.admin, "select failure_history from core.outbox where id = $1", key(n)), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReplay(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 2, failedRow+`, failure_history = '[{"reaped_at": "2026-01-01T00:00:00Z", "attempts": 1}]'`)
	before, other := d.row(t, 1), d.row(t, 2)
	at := value[time.Time](t, d.admin, "select clock_timestamp()")
	b := d.listen(t, "outbox_gen_1", "outbox_gen_3")
	if cycle := value[int](t, operator, "select core.outbox_replay(p_event_id => $1, p_new_generation => 3, p_replayed_by => ' anna ')", key(1)); cycle != 1 {
		t.Errorf("cycle %d ended, want 1: what was reaped is no cycle", cycle)
	}
	d.wantChanges(t, 1, before, at, map[string]string{
		"status": "= 'pending'", "generation": "= 3", "channel": "= 'outbox_gen_3'", "attempts": "= 0", "last_error": "is null",
		"first_failed_at": "is null", "claimed_at": "is null", "claimed_by": "is null", "handler_failures": "= '{}'", "crashes": "= 0",
		"available_at": "between b.at and clock_timestamp()", "failure_history": "-> 0 = '" + `{"reaped_at": "2026-01-01T00:00:00Z", "attempts": 1}` + "'",
	})
	if now := d.row(t, 2); !maps.EqualFunc(other, now, func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("another event was changed: %v", now)
	}
	if have := b.await(t, 1); have["outbox_gen_3"] != 1 {
		t.Errorf("it rings %v", have)
	}
	entry := d.history(t, 1)[1]
	for name, want := range map[string]any{
		"cycle": 1.0, "attempts": 6.0, "last_error": "HandlerError: a.b: no", "replayed_by": "anna",
		"first_failed_at": before["first_failed_at"], "failed_at": before["claimed_at"], "replayed_at": entry["replayed_at"],
	} {
		if entry[name] != want {
			t.Errorf("history has %s %v, want %v", name, entry[name], want)
		}
	}
	if len(entry) != 7 || entry["replayed_at"] == nil {
		t.Errorf("history has %v", entry)
	}
	// a second cycle is appended, not written over the first
	d.alter(t, 1, failedRow)
	if cycle := value[int](t, operator, "select core.outbox_replay($1, 4)", key(1)); cycle != 2 {
		t.Errorf("cycle %d ended, want 2", cycle)
	}
	login := value[string](t, operator, "select session_user")
	history := d.history(t, 1)
	if len(history) != 3 || history[1]["cycle"] != 1.0 || history[2]["cycle"] != 2.0 || history[2]["replayed_by"] != login {
		t.Errorf("after two replays the history is %v", history)
	}
	if have, want := d.actions(t), []string{`replay anna 1 3 {"asked": 1}`, "replay " + login + ` 1 4 {"asked": 1}`}; !slices.Equal(have, want) {
		t.Errorf("noted is %q, want %q", have, want)
	}
}

func TestReplayMovesTheChannel(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	for channel, want := range map[string]string{
		"outbox_gen_1": "outbox_gen_3", "outbox_gen_1_slow": "outbox_gen_3_slow", "outbox_gen_1_a_1": "outbox_gen_3_a_1",
		"outbox_default": "outbox_gen_3_slow", "outbox_gen_1_": "outbox_gen_3_slow", // the type's class
		"outbox_gen_1_" + strings.Repeat("x", 50): "outbox_gen_3_slow",
	} {
		d.rows(t, 1, failedRow+", event_type = $1, channel = $2", classType, channel)
		exec(t, operator, "select core.outbox_replay($1, 3)", key(1))
		if have := d.row(t, 1)["channel"]; have != want {
			t.Errorf("from %s it moves to %s, want %s", channel, have, want)
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 9, failedRow)
	d.alter(t, 2, "status = 'pending', available_at = clock_timestamp() - interval '1 s'")
	d.alter(t, 3, "status = 'pending', available_at = clock_timestamp() + interval '1 h'")
	d.alter(t, 4, "status = 'in_flight', claim_token = gen_random_uuid(), claimed_by = 'worker seven'")
	d.alter(t, 5, "status = 'delivered', delivered_at = clock_timestamp()")
	d.alter(t, 6, "deleted_at = clock_timestamp(), discarded_at = clock_timestamp()")
	d.alter(t, 7, "deleted_at = clock_timestamp()")
	d.alter(t, 8, "event_type = '"+unconsumedType+"'")
	d.alter(t, 9, "id = '"+key(1).String()+"'") // a twin
	replay := func(n int, more string) string {
		return fmt.Sprintf("select core.outbox_replay('%s', %s)", key(n), more)
	}
	refusals := []refusal{
		{"null id", "select core.outbox_replay(null, 3)", "SP030", "event_id", "null"},
		{"unknown", replay(77, "3"), "SP031", "event_id", "is not in core.outbox"},
		{"unknown by its time", replay(2, "3, p_occurred_at => '2020-01-01'"), "SP031", "event_id", "2020-01-01"},
		{"twin", replay(1, "3"), "SP035", "event_id", "occurred_at"},
		{"pending", replay(2, "3"), "SP032", "event_id", "is pending, not failed"},
		{"scheduled", replay(3, "3"), "SP032", "event_id", "core.outbox_retry_now"},
		{"in flight", replay(4, "3"), "SP032", "event_id", "worker seven"},
		{"in flight, forced", replay(4, "3, p_force => true"), "SP032", "event_id", "in_flight"},
		{"delivered", replay(5, "3"), "SP032", "event_id", "p_force => true"},
		{"discarded", replay(6, "3"), "SP033", "event_id", "core.outbox_undiscard"},
		{"expired", replay(7, "3"), "SP033", "event_id", "past its retention"},
		{"expired, forced", replay(7, "3, p_force => true"), "SP033", "event_id", "past its retention"},
		{"unconsumed", replay(8, "3"), "SP036", "event_id", "nobody consumes"},
	}
	d.wantRefused(t, operator, refusals...)
	for i := range refusals { // the preview refuses the same
		refusals[i].sql = strings.Replace(refusals[i].sql, "outbox_replay(", "outbox_replay_preview(", 1)
	}
	d.wantRefused(t, operator, slices.DeleteFunc(refusals, func(r refusal) bool { return r.name == "unconsumed" })...)
	d.alter(t, 9, "id = '"+key(9).String()+"'") // which is both, now
	exec(t, d.admin, "update core.outbox o set id = '"+key(9).String()+"' where o.id = $1 and o.payload ->> 'n' = '9'", key(1))
	d.wantRefused(t, operator,
		refusal{"no generation", replay(1, "null"), "SP019", "generation", "the highest live one is 3"},
		refusal{"unknown generation", replay(1, "77"), "SP019", "generation", "77 is not registered"},
		refusal{"retired generation", replay(1, "2"), "SP019", "generation", "2 is retired"},
		refusal{"blank name", replay(1, "3, ' '"), "SP030", "acted_by", "blank"},
		refusal{"long name", replay(1, "3, repeat('x', 257)"), "SP030", "acted_by", "257"},
		refusal{"no ids", "select core.outbox_replay_many(null, 3)", "SP030", "event_ids", "1000"},
		refusal{"too many", "select core.outbox_replay_many(array_fill(gen_random_uuid(), array[1001]), 3)", "SP030", "event_ids", "not 1001"},
		refusal{"times", "select core.outbox_replay_many(array[gen_random_uuid()], 3, 'a', '{}')", "SP030", "occurred_ats", "0 for 1"},
	)
	if _, err := d.login(t, "spectral_worker").Exec(deadline(t), replay(1, "3")); err == nil {
		t.Error("a worker may replay")
	}
}

// The twin of an id is replayed by its time, and nothing else is.
func TestReplayTellsTwinsApart(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 3, failedRow)
	exec(t, d.admin, "update core.outbox o set id = $1 where o.id = $2", key(1), key(2))
	pending := func() []string {
		return values[string](t, d.admin, "select payload ->> 'n' from core.outbox where status = 'pending' order by 1")
	}
	exec(t, operator, "select core.outbox_replay_many($1, 3)", []uuid.UUID{key(1), key(3)})
	if have := pending(); !slices.Equal(have, []string{"3"}) {
		t.Errorf("replayed are %v: which of the twins was meant?", have)
	}
	second := value[time.Time](t, d.admin, "select occurred_at from core.outbox where payload ->> 'n' = '2'")
	exec(t, operator, "select core.outbox_replay($1, 3, p_occurred_at => $2)", key(1), second)
	if have := pending(); !slices.Equal(have, []string{"2", "3"}) {
		t.Errorf("replayed are %v", have)
	}
}

func TestReplayOfADeliveredEvent(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 1, "status = 'delivered', delivered_at = clock_timestamp(), attempts = 1, claimed_at = clock_timestamp()")
	exec(t, operator, "select core.outbox_replay($1, 3, 'anna', p_force => true)", key(1))
	if !d.holds(t, 1, "o.status = 'pending' and o.delivered_at is null and o.claimed_at is null and o.generation = 3") {
		t.Errorf("it is %v", d.row(t, 1))
	}
	if entry := d.history(t, 1)[0]; entry["delivered_at"] == nil || entry["failed_at"] != nil || entry["cycle"] != 1.0 {
		t.Errorf("history has %v", entry)
	}
	if have := d.actions(t); !slices.Equal(have, []string{`replay anna 1 3 {"asked": 1, "forced": true}`}) {
		t.Errorf("noted is %q", have)
	}
}

// A history is bounded, and a replay always in it: what was reaped goes first, then the oldest replays.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	count := func(what string) int {
		return value[int](t, d.admin, "select count(*) from core.outbox, jsonb_array_elements(failure_history) h where h ? '"+what+"'")
	}
	d.rows(t, 1, failedRow+`, failure_history = (select jsonb_agg(case when i % 2 = 0 then jsonb_build_object('reaped_at', i) else jsonb_build_object('cycle', i, 'replayed_at', i) end order by i)
		from generate_series(1, 100) i)`)
	for range 60 {
		exec(t, operator, "select core.outbox_replay($1, 3)", key(1))
		d.alter(t, 1, failedRow)
	}
	history := d.history(t, 1)
	if len(history) != 100 || history[0]["omitted"] != 61.0 || len(history[0]) != 1 || count("reaped_at") != 0 || count("omitted") != 1 {
		t.Errorf("of 160 entries %d are left, %v of them first, %d reaped", len(history), history[0], count("reaped_at"))
	}
	// 50 replays were there, up to cycle 99; 60 came; 11 of the 110 had to go
	if history[1]["cycle"] != 23.0 || history[99]["cycle"] != 159.0 {
		t.Errorf("left are the cycles from %v to %v", history[1]["cycle"], history[99]["cycle"])
	}
	// in bytes, too
	d.rows(t, 1, failedRow+`, failure_history = '[{"reaped_at": "x"}]'`)
	for i := range 60 {
		d.alter(t, 1, failedRow)
		d.alter(t, 1, "last_error = repeat('e', 8000)")
		if cycle := value[int](t, operator, "select core.outbox_replay($1, 3)", key(1)); cycle != i+1 {
			t.Fatalf("cycle %d, want %d", cycle, i+1)
		}
	}
	history = d.history(t, 1)
	bytes := value[int](t, d.admin, "select octet_length(failure_history::text) from core.outbox")
	if bytes > 262144 || bytes < 200000 || history[len(history)-1]["cycle"] != 60.0 || history[0]["omitted"] != float64(62-len(history)) {
		t.Errorf("%d bytes, %d entries, first %v, last %v", bytes, len(history), history[0], history[len(history)-1]["cycle"])
	}
	// and with what the reaper adds to it, whose reason is long
	d.rows(t, 1, failedRow)
	for range 100 {
		d.alter(t, 1, failedRow)
		d.alter(t, 1, "last_error = repeat('ä', 4000)")
		exec(t, operator, "select core.outbox_replay($1, 3)", key(1))
	}
	if n := value[int](t, operator, "select core.prior_replays(failure_history) from core.outbox"); n != 100 {
		t.Errorf("%d prior replays are counted of 100, of which some had to make room", n)
	}
	d.alter(t, 1, expired)
	d.alter(t, 1, "lease_handler = repeat('ä', 20000), lease_seconds = 0.25")
	if lines := reap(t, d.admin, 50, nil); len(lines) != 1 || !lines[0].Reaped {
		t.Fatalf("reaped is %+v", lines)
	}
	history = d.history(t, 1)
	bytes = value[int](t, d.admin, "select octet_length(failure_history::text) from core.outbox")
	if last := history[len(history)-1]; bytes > 262144 || last["reaped_at"] == nil || history[0]["omitted"] != float64(102-len(history)) || history[len(history)-2]["cycle"] != 100.0 {
		t.Errorf("of 100 replays and a reap %d bytes and %d entries are left, the last of %v, without %v", bytes, len(history), last["reaped_at"], history[0])
	}
	// whatever somebody has written by hand
	d.rows(t, 1, failedRow+`, failure_history = '[1, "omitted", "reaped_at", null, {"cycle": "x"}, {"cycle": 1e30}, {"omitted": "y"}, []]'`)
	exec(t, operator, "select core.outbox_replay($1, 3)", key(1))
	if n := value[int](t, operator, "select core.prior_replays(failure_history) from core.outbox"); n != 1_000_000 {
		t.Errorf("%d prior replays", n)
	}
	if n := value[int](t, d.admin, "select jsonb_array_length(failure_history) from core.outbox"); n != 9 {
		t.Errorf("%d entries, want 9", n)
	}
}

// Who consumes a type is asked of the generation that it is replayed into, as when it is published into it: a newer build may have a handler
// for what an older one has none for, and the other way round.
func TestReplayIntoTheGenerationThatConsumes(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	register := func(generation int, consumed bool) {
		t.Helper()
		exec(t, d.admin, `select core.event_types_register($1, (select jsonb_agg(to_jsonb(t) || jsonb_build_object('consumed', $2::boolean))
			from core.event_types t where t.event_type = $3))`, generation, consumed, cardType)
	}
	for _, c := range []struct{ older, newer bool }{{false, true}, {true, false}} {
		exec(t, d.admin, "update core.event_types set registered_by = 1, consumed_in = '{}' where event_type = $1", cardType)
		register(1, c.older)
		register(3, c.newer)
		for generation, consumed := range map[int]bool{1: c.older, 3: c.newer} {
			d.rows(t, 2, failedRow)
			id := value[uuid.UUID](t, d.admin, "select core.outbox_publish($1, 'worlds', '{}', p_generation => $2)", cardType, generation)
			published := value[string](t, d.admin, "select status from core.outbox where id = $1", id)
			if (published == "pending") != consumed {
				t.Fatalf("%+v: published into %d it is %s", c, generation, published)
			}
			note := value[string](t, operator, "select coalesce(string_agg(note, ''), '') from core.outbox_replay_preview_many(array[$1::uuid], $2)", key(1), generation)
			if strings.Contains(note, "nobody consumes its type") == consumed {
				t.Errorf("%+v: the preview of a replay into %d says: %s", c, generation, note)
			}
			_, previewed := operator.Exec(deadline(t), "select core.outbox_replay_preview($1, $2)", key(1), generation)
			if code := sqlstate(t, previewed); (code == "") != consumed || !consumed && code != "SP036" {
				t.Errorf("%+v: the preview of one into %d: SQLSTATE %q", c, generation, code)
			}
			if n := len(values[uuid.UUID](t, operator, "select event_id from core.outbox_replay_many(array[$1::uuid], $2)", key(1), generation)); (n == 1) != consumed {
				t.Errorf("%+v: %d events are replayed into %d", c, n, generation)
			}
			_, err := operator.Exec(deadline(t), "select core.outbox_replay($1, $2)", key(2), generation)
			if code := sqlstate(t, err); (code == "") != consumed || !consumed && code != "SP036" {
				t.Errorf("%+v: a replay into %d: SQLSTATE %q", c, generation, code)
			}
		}
	}
}

// What several functions have to agree on is said by one, and where that is asked of each event it costs no call.
func TestWhatFunctionsAgreeOnIsSaidOnce(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	for what, c := range map[string]struct{ by, like string }{
		"who consumes a type":                   {"core.consumes", `consumed_in\s*->`},
		"how often an event was replayed":       {"core.prior_replays", `->>?\s*'cycle'`},
		"whether an event was tried":            {"core.tried", `last_error IS NOT NULL`},
		"what an act in bulk locks":             {"core.operated_rows", `unnest\(p_event_ids.*skip locked`},
		"what an act in bulk takes for its ids": {"core.operated_ids", `cardinality\(p_event_ids\) > 1000`},
		"who is nobody's consumer":              {"core.unconsumed", `core.event_types t\s+where[^;]*not core.consumes`},
	} {
		if by := values[string](t, conn, `select format('core.%s', p.proname) from pg_proc p
			where p.pronamespace = 'core'::regnamespace and p.prokind = 'f' and pg_get_functiondef(p.oid) ~* $1`, c.like); !slices.Equal(by, []string{c.by}) {
			t.Errorf("%s is said by %q, not by %s alone", what, by, c.by)
		}
	}
	for _, name := range sources(t) {
		text, err := os.ReadFile("../../db/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "queries/") && regexp.MustCompile(`consumed_in|->>? *'cycle'|skip locked`).Match(text) {
			t.Errorf("%s says for itself what a function says", name)
		}
	}
	plan := values[string](t, conn, `explain (verbose, costs off) select core.consumes(o.generation, t.consumed_in, t.consumed), core.tried(o.attempts, o.last_error), core.handles('a.b', o.target)
		from core.outbox o join core.event_types t on t.event_type = o.event_type and t.event_version = o.event_version`)
	if text := strings.Join(plan, "\n"); strings.Contains(text, "core.consumes") || strings.Contains(text, "core.tried") || strings.Contains(text, "core.handles") {
		t.Errorf("a function is called for each row:\n%s", text)
	}
}

// Bulk replay takes what is failed and free, in one note and one ring for each channel.
func TestReplayMany(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 9, failedRow)
	d.alter(t, 2, "status = 'pending'")
	d.alter(t, 3, "status = 'delivered'")
	d.alter(t, 4, "deleted_at = now(), discarded_at = now()")
	d.alter(t, 6, "channel = 'outbox_gen_1_slow'")
	d.alter(t, 7, "claimed_at = clock_timestamp() + interval '1 h'") // failed again since
	d.alter(t, 8, "event_type = '"+unconsumedType+"'")
	locked := begin(t, pgtest.Conn(t, d.at))
	exec(t, locked, "select from core.outbox where id = $1 for update", key(5))
	b := d.listen(t, "outbox_gen_1", "outbox_gen_3", "outbox_gen_3_slow")
	ids := []uuid.UUID{key(9), key(1), key(1), key(77)}
	for n := range 9 {
		ids = append(ids, key(n+1))
	}
	have := values[uuid.UUID](t, operator, "select event_id from core.outbox_replay_many($1, 3, 'anna', p_settled_before => clock_timestamp()) order by 1", ids)
	if want := []uuid.UUID{key(1), key(6), key(9)}; !slices.Equal(have, want) {
		t.Errorf("replayed were %v, want %v", have, want)
	}
	if have, want := b.await(t, 2), (map[string]int{"outbox_gen_3": 1, "outbox_gen_3_slow": 1}); !maps.Equal(have, want) {
		t.Errorf("it rings %v, want %v", have, want)
	}
	if have := b.heard(t, d); len(have) > 0 {
		t.Errorf("it rings %v once more", have)
	}
	if have, want := d.actions(t), []string{`replay anna 3 3 {"asked": 13}`}; !slices.Equal(have, want) {
		t.Errorf("noted is %q, want %q", have, want)
	}
	if n := len(values[uuid.UUID](t, operator, "select event_id from core.outbox_replay_many($1, 3, 'anna', p_force => true)", []uuid.UUID{key(3), key(4)})); n != 1 {
		t.Errorf("by force %d are replayed, want 1", n)
	}
	// by force, and once: what is delivered anew is not meant
	asOf := value[time.Time](t, d.admin, "select clock_timestamp()")
	d.alter(t, 3, delivered)
	for _, before := range []struct {
		at   time.Time
		want int
	}{{asOf, 0}, {value[time.Time](t, d.admin, "select clock_timestamp()"), 1}, {asOf, 0}} {
		if n := len(values[uuid.UUID](t, operator, "select event_id from core.outbox_replay_many($1, 3, 'anna', null, $2, true)", []uuid.UUID{key(3)}, before.at)); n != before.want {
			t.Errorf("delivered anew, by force %d are replayed, want %d", n, before.want)
		}
	}
	if n := len(values[uuid.UUID](t, operator, "select event_id from core.outbox_replay_many('{}', 3)")); n != 0 || len(d.actions(t)) != 3 {
		t.Errorf("none asked for: %d replayed, noted %v", n, d.actions(t))
	}
}

// Operators who replay the same events at once replay each once, and never wait for each other.
func TestReplayingTogether(t *testing.T) {
	t.Parallel()
	d, _ := setupOperator(t)
	const events, operators = 2000, 4
	d.rows(t, events, failedRow)
	logins := make([]*pgx.Conn, operators)
	for i := range logins {
		logins[i] = d.login(t, "spectral_operator")
		exec(t, logins[i], "set lock_timeout = '2 s'")
	}
	counts := make([]int, operators)
	together(t, operators, func(ctx context.Context, i int) error {
		for from := 1; from <= events; from += 100 {
			ids := make([]uuid.UUID, 100)
			for n := range ids {
				ids[n] = key(from + n)
				if i%2 == 1 { // against each other
					ids[n] = key(events + 1 - from - n)
				}
			}
			var n int
			if err := logins[i].QueryRow(ctx, "select count(*) from core.outbox_replay_many($1, 3, $2)", ids, fmt.Sprint("operator ", i)).Scan(&n); err != nil {
				return err
			}
			counts[i] += n
			// and one alone, which may be refused, and nothing else
			if _, err := logins[i].Exec(ctx, "select core.outbox_replay($1, 3)", key(from)); err == nil {
				counts[i]++
			} else if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "SP032" {
				return err
			}
		}
		return nil
	})
	total := 0
	for _, n := range counts {
		total += n
	}
	if total != events {
		t.Errorf("%v were replayed, %d in all, want %d", counts, total, events)
	}
	if wrong := value[int](t, d.admin, "select count(*) from core.outbox where status <> 'pending' or jsonb_array_length(failure_history) <> 1"); wrong != 0 {
		t.Errorf("%d events are not replayed exactly once", wrong)
	}
	if noted := value[int](t, d.admin, "select count(*) from core.operator_actions, unnest(event_ids)"); noted != events {
		t.Errorf("%d are noted", noted)
	}
}

// The second of two operators waits for the first, and is told.
func TestReplayOfWhatIsBeingReplayed(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 1, failedRow)
	first := begin(t, operator)
	exec(t, first, "select core.outbox_replay($1, 3, 'anna')", key(1))
	second := d.login(t, "spectral_operator")
	pid := value[int](t, second, "select pg_backend_pid()")
	done := make(chan error, 1)
	ctx := deadline(t)
	go func() {
		_, err := second.Exec(ctx, "select core.outbox_replay($1, 3, 'bert')", key(1))
		done <- err
	}()
	for !value[bool](t, d.admin, "select exists (select from pg_locks where pid = $1 and not granted)", pid) {
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](<-done); !ok || pg.Code != "SP032" {
		t.Errorf("the second: %v", pg)
	}
	if history := d.history(t, 1); len(history) != 1 || history[0]["replayed_by"] != "anna" {
		t.Errorf("the history is %v", history)
	}
}

// What a replay or a retry_now brings back is above every floor: its transaction has an id before it reads the clock.
func TestWhatOperatorsBringBackIsAboveTheFloor(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	for _, c := range []struct{ set, sql string }{
		{failedRow, "select core.outbox_replay($1, 1)"},
		{failedRow, "select core.outbox_replay_many(array[$1]::uuid[], 1)"},
		{"available_at = clock_timestamp() + interval '1 h'", "select core.outbox_retry_now($1)"},
	} {
		d.rows(t, 1, c.set)
		tx := begin(t, operator)
		exec(t, tx, c.sql, key(1))
		stamped := value[time.Time](t, tx, "select available_at from core.outbox where id = $1", key(1))
		var markAt time.Time
		var running, id int64
		if err := pgtest.Conn(t, d.at).QueryRow(deadline(t), "select mark_at, lowest_running, mark_id from core.outbox_floor(1, 'worlds.world_model_card.published', '-infinity')").Scan(&markAt, &running, &id); err != nil {
			t.Fatal(err)
		}
		if own := value[int64](t, tx, "select pg_current_xact_id()::text::bigint"); stamped.After(markAt) || running > own || id <= own {
			t.Errorf("%s: stamped %s by %d; a mark at %s has id %d with %d running", c.sql, stamped, own, markAt, id, running)
		}
		if err := tx.Rollback(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, function := range []string{"outbox_replay_many", "outbox_retry_now_many"} {
		source := value[string](t, d.admin, "select prosrc from pg_proc where proname = $1", function)
		id, clock := strings.Index(source, "pg_current_xact_id()"), strings.Index(source, "clock_timestamp()")
		if id < 0 || clock < id {
			t.Errorf("core.%s reads the clock before it has a transaction id", function)
		}
	}
}

// A preview says handler by handler what would run, by what live workers have and core.event_handled knows.
func TestReplayPreview(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 5, failedRow)
	d.alter(t, 2, "target = 'worlds'")
	d.alter(t, 3, "target = 'core'")
	d.alter(t, 4, "event_type = $1", platformType)
	preview := func(n int) []string {
		return values[string](t, operator, "select concat_ws(' ', handler, would_run, handled_at is not null, note) from core.outbox_replay_preview($1, 3)", key(n))
	}
	want := func(n int, lines ...string) {
		t.Helper()
		if have := preview(n); !slices.Equal(have, lines) {
			t.Errorf("event %d: %q, want %q", n, have, lines)
		}
	}
	const nobody = "f f no worker of generation 3 is live: what will run is not known"
	want(1, nobody)
	register := func(generation int, handlers string) *pgx.Conn {
		conn := d.login(t, "spectral_worker")
		exec(t, conn, "select core.worker_register(gen_random_uuid(), $1, 'w', $2)", generation, handlers)
		return conn
	}
	register(1, `{"worlds.world_model_card.published": ["worlds.old"]}`)
	want(1, nobody)
	card := `{"worlds.world_model_card.published": ["platform.one", "worlds.two"]}`
	register(3, card)
	register(3, card) // a replica
	slow := register(3, `{"worlds.thing.slow": ["worlds.three"]}`)
	exec(t, d.admin, "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) values ('worlds.two', 'k1', $1, 'a.b', 'operational'), ('worlds.old', 'k5', $1, 'a.b', 'operational')", key(1))
	want(1, "platform.one t f", "worlds.two f t")
	want(2, "worlds.two t f")
	want(3, "f f no live worker of generation 3 handles worlds.world_model_card.published for target core")
	want(4, "f f no live worker of generation 3 handles platform.thing.happened")
	want(5, "platform.one t f", "worlds.two t f")
	exec(t, operator, "select core.event_type_pause('worlds.world_model_card.published', 3, 'anna')")
	if have := preview(2); len(have) != 1 || !strings.Contains(have[0], "paused in generation 3 since") || !strings.Contains(have[0], "by anna") {
		t.Errorf("of a paused type: %q", have)
	}
	if n := value[int](t, operator, "select count(*) from core.outbox_replay_preview_many($1, 3)", []uuid.UUID{key(1), key(2), key(4), key(77)}); n != 4 {
		t.Errorf("%d lines of three events, want 4", n)
	}
	if left := d.versions(t); !strings.Contains(strings.Join(left, ""), `"failed"`) || len(d.actions(t)) != 1 {
		t.Error("a preview changes something")
	}
	// a worker that is gone is not counted on
	d.alter(t, 5, "event_type = $1", classType)
	want(5, "worlds.three t f")
	pid := slow.PgConn().PID()
	if err := slow.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	for ctx := deadline(t); value[bool](t, d.admin, "select exists (select from pg_stat_activity where pid = $1)", pid); {
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
	}
	want(5, "f f no live worker of generation 3 handles worlds.thing.slow")
}

// With many rows, and plans from when there was none, each row is read a few times.
func TestPlansOfOperators(t *testing.T) {
	t.Parallel()
	d, _ := setupOperator(t)
	exec(t, d.admin, "alter table core.outbox disable trigger outbox_notify")
	exec(t, d.admin, "analyze core.outbox")
	conn := pgtest.Conn(t, d.at)
	exec(t, conn, "set plan_cache_mode = force_generic_plan")
	calls := []string{
		"select count(*) from core.outbox_replay_preview_many($1, 3)",
		"select count(*) from core.outbox_discard_many($1, 'a')",
		"select count(*) from core.outbox_undiscard_many($1, 'a')",
		"select count(*) from core.outbox_replay_many($1, 1)",
		"select count(*) from core.outbox_retry_now_many($1, 'a')",
	}
	ids := func(from int) (all []uuid.UUID) {
		for n := range 100 {
			all = append(all, key(from+n))
		}
		return all
	}
	for _, call := range calls {
		exec(t, conn, call, ids(1))
	}
	d.rows(t, 5000, failedRow)
	entries := func() int {
		exec(t, conn, "select pg_stat_force_next_flush()")
		exec(t, conn, "select 1")
		exec(t, d.admin, "select pg_stat_force_next_flush()")
		exec(t, d.admin, "select 1")
		return value[int](t, d.admin, `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'outbox')::int
			+ (select seq_tup_read from pg_stat_user_tables where relname = 'outbox')::int`)
	}
	for _, call := range calls {
		if strings.Contains(call, "retry_now") {
			exec(t, d.admin, "update core.outbox set available_at = clock_timestamp() + interval '1 h' where status = 'pending'")
		}
		before := entries()
		n := value[int](t, conn, call, ids(2000))
		if read := entries() - before; n != 100 || read > 2500 {
			t.Errorf("%s: %d entries were read for %d events", call, read, n)
		}
	}
}
