package database_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/retention"
)

// swept is what a sweep came to, rows by "subject.step", without the zeros.
type swept map[string]int

// sweepOnce calls core.retention_sweep once.
func sweepOnce(t testing.TB, q querier, arguments string) (rows swept, more, led bool) {
	t.Helper()
	lines, err := q.Query(deadline(t), "select subject || '.' || step, rows::integer, more from core.retention_sweep("+arguments+")")
	if err != nil {
		t.Fatal(err)
	}
	rows = swept{}
	var step string
	var n int
	var left bool
	if _, err := pgx.ForEachRow(lines, []any{&step, &n, &left}, func() error {
		if n > 0 {
			rows[step] += n
		}
		more, led = more || left, true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows, more, led
}

// sweepAll sweeps until nothing is left.
func sweepAll(t testing.TB, q querier) swept {
	t.Helper()
	all := swept{}
	for range 1000 {
		rows, more, led := sweepOnce(t, q, "")
		if !led {
			t.Fatal("somebody else is sweeping")
		}
		for step, n := range rows {
			all[step] += n
		}
		if !more {
			return all
		}
	}
	t.Fatal("a sweep comes to no end")
	return nil
}

// preview is what core.retention_preview counts.
func preview(t testing.TB, q querier, arguments string) swept {
	t.Helper()
	lines, err := q.Query(deadline(t), "select subject || '.' || step, rows::integer from core.retention_preview("+arguments+")")
	if err != nil {
		t.Fatal(err)
	}
	rows := swept{}
	var step string
	var n int
	if _, err := pgx.ForEachRow(lines, []any{&step, &n}, func() error {
		if n > 0 {
			rows[step] += n
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}

// pass lets days go by: all that is stored is so much older.
func (d database) pass(t testing.TB, days int) {
	t.Helper()
	exec(t, d.admin, fmt.Sprintf(`
		update core.outbox set occurred_at = occurred_at - t, created_at = created_at - t, available_at = available_at - t,
			first_failed_at = first_failed_at - t, claimed_at = claimed_at - t, delivered_at = delivered_at - t, deleted_at = deleted_at - t,
			discarded_at = discarded_at - t, undiscarded_at = undiscarded_at - t
		from (select interval '%[1]d days' as t) i;
		update core.event_handled set handled_at = handled_at - t, deleted_at = deleted_at - t from (select interval '%[1]d days' as t) i;
		update core.operator_actions set acted_at = acted_at - t, deleted_at = deleted_at - t from (select interval '%[1]d days' as t) i;
		update core.retention_progress set walk_started_at = walk_started_at - t, walk_ended_at = walk_ended_at - t,
			from_deleted_at = from_deleted_at - t from (select interval '%[1]d days' as t) i`, days))
}

// handle notes that a handler has handled the n-th row.
func (d database) handle(t testing.TB, n int, handler string) {
	t.Helper()
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select $2, idempotency_key, id, event_type, content_class from core.outbox where id = $1`, key(n), handler)
}

// store leaves core.outbox with an event, the n-th, of the default key or its own.
func (d database) store(t testing.TB, n int, own, set string) {
	t.Helper()
	exec(t, d.admin, `
		insert into core.outbox (id, event_type, event_version, source, content_class, channel, generation, payload, idempotency_key)
		values ($1::uuid, 'worlds.world_model_card.published', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', coalesce(nullif($2, ''), $1::uuid::text))`,
		key(n), own)
	if set != "" {
		d.alter(t, n, set)
	}
}

const (
	delivered = "status = 'delivered', delivered_at = clock_timestamp(), claim_token = null"
	failed    = "status = 'failed', claimed_at = clock_timestamp(), first_failed_at = clock_timestamp()"
	replayed  = "status = 'pending', claimed_at = null, first_failed_at = null"
)

func TestRetentionPolicies(t *testing.T) {
	t.Parallel()
	d := setup(t)
	want := retention.Policies()
	if err := retention.Check(want); err != nil {
		t.Fatal(err)
	}
	rows, err := d.admin.Query(deadline(t), "select subject, content_class, active_ttl_days, tombstoned_grace_days, disposal from core.retention_policies")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[retention.Policy])
	if err != nil {
		t.Fatal(err)
	}
	if len(stored) != len(want) {
		t.Errorf("%d policies are stored, want %d", len(stored), len(want))
	}
	for _, p := range stored {
		if !slices.Contains(want, p) {
			t.Errorf("stored is %+v, want one of %+v", p, want)
		}
	}
	// the seed's figures (D13), and its inequality
	if want[0] != (retention.Policy{Subject: "outbox_row", ContentClass: "*", ActiveTTLDays: 45, TombstonedGraceDays: 7, Disposal: "HARD_DELETE"}) ||
		want[1] != (retention.Policy{Subject: "event_handled", ContentClass: "*", ActiveTTLDays: 60, TombstonedGraceDays: 7, Disposal: "HARD_DELETE"}) ||
		want[1].ActiveTTLDays <= want[0].ActiveTTLDays+want[0].TombstonedGraceDays {
		t.Errorf("the policies are %+v", want)
	}
	for _, broken := range [][2]int{{53, 7}, {45, 15}} {
		policies := retention.Policies()
		policies[0].ActiveTTLDays, policies[0].TombstonedGraceDays = broken[0], broken[1]
		if err := retention.Check(policies); !errors.Is(err, retention.ErrDedupWindow) {
			t.Errorf("policies %+v are checked: %v", policies, err)
		}
	}
}

// The database refuses policies by which a handled event would take effect again, and nonsense, from the owner, too.
func TestPoliciesThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	d := setup(t)
	set := func(what string) string { return "update core.retention_policies set " + what }
	for _, role := range []string{"spectral_owner", "postgres"} {
		exec(t, d.admin, "set role "+role)
		for sql, code := range map[string]string{
			set("active_ttl_days = 52 where subject = 'event_handled'"):             "SP050",
			set("active_ttl_days = 53 where subject = 'outbox_row'"):                "SP050",
			set("tombstoned_grace_days = 15 where subject = 'outbox_row'"):          "SP050",
			set("subject = 'operator_action' where subject = 'event_handled'"):      "23505",
			"delete from core.retention_policies where subject = 'event_handled'":   "SP050",
			"delete from core.retention_policies":                                   "SP050",
			"truncate core.retention_policies":                                      "SP050",
			set("active_ttl_days = 0 where subject = 'outbox_row'"):                 "23514",
			set("active_ttl_days = -1 where subject = 'outbox_row'"):                "23514",
			set("active_ttl_days = 36501"):                                          "23514",
			set("active_ttl_days = null"):                                           "23502",
			set("tombstoned_grace_days = 0"):                                        "23514",
			set("tombstoned_grace_days = -7"):                                       "23514",
			set("disposal = 'ARCHIVE'"):                                             "23514",
			set("content_class = 'workspace'"):                                      "23514",
			"insert into core.retention_policies values ('moon', '*', 1, 1)":        "23514",
			"insert into core.retention_policies values ('outbox_row', '*', 60, 1)": "23505",
		} {
			_, err := d.admin.Exec(deadline(t), sql)
			if have := sqlstate(t, err); have != code {
				t.Errorf("%s as %s: SQLSTATE %q, want %s (%v)", sql, role, have, code, err)
			}
		}
	}
	exec(t, d.admin, "set role spectral_owner")
	// that of actions depends on no other
	exec(t, d.admin, set("active_ttl_days = 1 where subject = 'operator_action'")+"; "+set("active_ttl_days = 365 where subject = 'operator_action'"))
	// together they may change, in either order
	exec(t, d.admin, set("active_ttl_days = 90 where subject = 'outbox_row'")+"; "+set("active_ttl_days = 98 where subject = 'event_handled'"))
	exec(t, d.admin, set("active_ttl_days = 20 where subject = 'event_handled'")+"; "+set("active_ttl_days = 10 where subject = 'outbox_row'"))

	// two that are each sound alone: the second sees the first, or is told that it does not
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		exec(t, d.admin, set("active_ttl_days = 45 where subject = 'outbox_row'")+"; "+set("active_ttl_days = 60 where subject = 'event_handled'"))
		ctx := deadline(t)
		one := d.login(t, "spectral_owner")
		two := d.login(t, "spectral_owner")
		first, err := one.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation})
		if err != nil {
			t.Fatal(err)
		}
		second, err := two.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation})
		if err != nil {
			t.Fatal(err)
		}
		exec(t, first, "select 1 from core.retention_policies")
		exec(t, second, "select 1 from core.retention_policies")
		exec(t, first, set("active_ttl_days = 52 where subject = 'outbox_row'"))
		changed := make(chan error, 1)
		go func() {
			_, err := second.Exec(ctx, set("active_ttl_days = 54 where subject = 'event_handled'"))
			changed <- errors.Join(err, second.Commit(ctx))
		}()
		waitFor(t, d.admin, fmt.Sprintf("select exists (select from pg_locks where pid = %d and not granted)", two.PgConn().PID()))
		if err := first.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-changed; err == nil {
			t.Errorf("%s: two transactions broke together what each of them kept", isolation)
		}
		if fault := value[*string](t, d.admin, "select core.retention_policies_check()"); fault != nil {
			t.Errorf("%s: stored are policies with a fault: %s", isolation, *fault)
		}
	}
}

// history is an event, its handled keys, and what happens to them on which day.
type history struct {
	name string
	own  string // its own key
	days map[int]string
	// handled is by which handler and on which day it was handled
	handled map[string]int
	// the days on which the event and the keys are first seen tombstoned and deleted; 0: never
	tombstoned, deleted int
	keys                map[string][2]int
}

// Of each event, and of each key, a sweep every day does what it should on the day that it should.
func TestRetentionDayByDay(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const a, b = "worlds.a", "worlds.b"
	const discard, undiscard = "; select core.outbox_discard('%s', 'anna')", "; select core.outbox_undiscard('%s', 'anna')"
	occurred := func(days int) string {
		return fmt.Sprintf(", occurred_at = clock_timestamp() + interval '%d days'", days)
	}
	for _, h := range []history{
		{name: "an ordinary event", days: map[int]string{0: delivered}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {60, 67}}},
		{name: "occurs a day ahead", days: map[int]string{0: delivered + occurred(1)}, handled: map[string]int{a: 0}, tombstoned: 46, deleted: 53, keys: map[string][2]int{a: {60, 67}}},
		{name: "had occurred 50 days before it was published", days: map[int]string{0: delivered + occurred(-50)}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {60, 67}}},
		{name: "the same, and fails: it can be seen for as long as others", days: map[int]string{0: failed + occurred(-50)}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {60, 67}}},
		{name: "scheduled far ahead", days: map[int]string{100: delivered}, handled: map[string]int{a: 100}, tombstoned: 145, deleted: 152, keys: map[string][2]int{a: {160, 167}}},
		{name: "paused for longer than keys are kept, after one handler", days: map[int]string{100: delivered}, handled: map[string]int{a: 0, b: 100}, tombstoned: 145, deleted: 152, keys: map[string][2]int{a: {152, 159}, b: {160, 167}}},
		{name: "pending for ever", handled: map[string]int{a: 0}},
		{name: "in flight for ever", days: map[int]string{0: "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()"}, handled: map[string]int{a: 0}},
		{name: "pending, and tombstoned by hand: not even that", days: map[int]string{0: "deleted_at = now()"}, handled: map[string]int{a: 0}, tombstoned: 1},
		{name: "fails and is left", days: map[int]string{0: failed}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {60, 67}}},
		{name: "fails on the last day of its retry", days: map[int]string{44: failed}, handled: map[string]int{a: 0}, tombstoned: 89, deleted: 96, keys: map[string][2]int{a: {96, 103}}},
		{name: "fails, replayed on day 44, handled long after", days: map[int]string{0: failed, 44: replayed, 70: delivered}, handled: map[string]int{a: 0, b: 70}, tombstoned: 115, deleted: 122, keys: map[string][2]int{a: {122, 129}, b: {130, 137}}},
		{name: "fails and is discarded", days: map[int]string{0: failed, 10: "deleted_at = clock_timestamp()"}, handled: map[string]int{a: 0}, tombstoned: 10, deleted: 17, keys: map[string][2]int{a: {60, 67}}},
		{name: "undiscarded late: there is time to replay it", days: map[int]string{0: failed, 44: discard, 50: undiscard}, handled: map[string]int{a: 0}, tombstoned: 44, deleted: 64, keys: map[string][2]int{a: {64, 71}}},
		{name: "undiscarded late, and discarded again", days: map[int]string{0: failed, 44: discard, 50: undiscard, 55: discard}, handled: map[string]int{a: 0}, tombstoned: 44, deleted: 62, keys: map[string][2]int{a: {62, 69}}},
		{name: "undiscarded on day 50, replayed on day 51", days: map[int]string{0: failed, 44: discard, 50: undiscard, 51: replayed, 52: delivered}, handled: map[string]int{a: 0, b: 52}, tombstoned: 44, deleted: 104, keys: map[string][2]int{a: {104, 111}, b: {112, 119}}},
		{name: "a handler is added later, the delivered event replayed for it", days: map[int]string{0: delivered, 40: replayed, 41: delivered}, handled: map[string]int{a: 0, b: 41}, tombstoned: 86, deleted: 93, keys: map[string][2]int{a: {93, 100}, b: {101, 108}}},
		{name: "handled and failed while the clock was a month behind", days: map[int]string{0: "status = 'failed', claimed_at = clock_timestamp() - interval '30 days'"}, handled: map[string]int{a: -30}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {52, 59}}},
		{name: "handled and delivered while the clock was 20 days ahead", days: map[int]string{0: "status = 'delivered', delivered_at = clock_timestamp() + interval '20 days'"}, handled: map[string]int{a: 20}, tombstoned: 65, deleted: 72, keys: map[string][2]int{a: {80, 87}}},
		{name: "a key of the caller's own", own: "worlds:-:o", days: map[int]string{0: delivered}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {60, 67}}},
		// the other event of each of these keys is among those below
		{name: "its key published again, and paused", own: "worlds:-:again", days: map[int]string{0: delivered}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {100, 107}}},
		{name: "its key published again, and failed", own: "worlds:-:again failed", days: map[int]string{0: delivered}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {110, 117}}},
		{name: "its key published again once it was tombstoned", own: "worlds:-:late", days: map[int]string{0: delivered}, handled: map[string]int{a: 0}, tombstoned: 45, deleted: 52, keys: map[string][2]int{a: {80, 87}}},
	} {
		t.Run(h.name, func(t *testing.T) { d.live(t, h) })
	}
}

// live is one history, from its first to its last day.
func (d database) live(t *testing.T, h history) {
	t.Helper()
	exec(t, d.admin, "delete from core.outbox; delete from core.event_handled; delete from core.operator_actions; delete from core.retention_progress")
	again := map[string][3]any{"worlds:-:again": {58, 100, delivered}, "worlds:-:again failed": {58, 58, failed}, "worlds:-:late": {63, 80, delivered}}
	haveTombstoned, haveDeleted, haveKeys := 0, 0, map[string][2]int{}
	last := max(h.deleted, 60)
	for _, days := range h.keys {
		last = max(last, days[1])
	}
	// the days between change nothing
	days := []int{0}
	for day := 1; day <= last+3; day++ {
		_, something := h.days[day]
		for _, of := range h.handled {
			something = something || of == day
		}
		for _, of := range append(slices.Collect(maps.Values(h.keys)), [2]int{h.tombstoned, h.deleted}, [2]int{44, 52}, [2]int{60, 67}) {
			something = something || slices.Contains([]int{of[0] - 8, of[0] - 7, of[0] - 1, of[0], of[1] - 8, of[1] - 7, of[1] - 1, of[1]}, day)
		}
		if other, ok := again[h.own]; ok {
			something = something || day == other[0] || day == other[1]
		}
		if something || day == 1 || day == last+3 {
			days = append(days, day)
		}
	}
	d.store(t, 1, h.own, "")
	before := 0
	for _, day := range days {
		if day > before {
			d.pass(t, day-before)
			before = day
		}
		if set, ok := h.days[day]; ok {
			set, more, _ := strings.Cut(set, "; ")
			if set != "" {
				d.alter(t, 1, set)
			}
			if more != "" {
				exec(t, d.admin, fmt.Sprintf(more, key(1)))
			}
		}
		for handler, of := range h.handled {
			if day == max(of, 0) && of != 20 || of == 20 && day == 0 { // the clock may have been another
				d.handle(t, 1, handler)
				exec(t, d.admin, "update core.event_handled set handled_at = handled_at + make_interval(days => $2) where handler_name = $1", handler, of-day)
			}
		}
		if other, ok := again[h.own]; ok && other[0] == day {
			d.store(t, 2, h.own, "")
		}
		if other, ok := again[h.own]; ok && other[1] == day {
			d.alter(t, 2, other[2].(string))
		}
		counted := preview(t, d.admin, "")
		rows := sweepAll(t, d.admin)
		if counted["outbox_row.deleted"] != rows["outbox_row.deleted"] || counted["outbox_row.tombstoned"] != rows["outbox_row.tombstoned"] ||
			counted["event_handled.undone"] != rows["event_handled.undone"] {
			t.Errorf("day %d: previewed is %v, swept %v", day, counted, rows)
		}
		var there, tombstoned bool
		if err := d.admin.QueryRow(deadline(t), "select count(*) > 0, coalesce(bool_or(deleted_at is not null), false) from core.outbox where id = $1", key(1)).
			Scan(&there, &tombstoned); err != nil {
			t.Fatal(err)
		}
		if tombstoned && haveTombstoned == 0 {
			haveTombstoned = max(day, 1)
		}
		if !there && haveDeleted == 0 {
			haveDeleted = day
		}
		for handler, of := range h.handled {
			if day < of {
				continue
			}
			left := values[bool](t, d.admin, "select deleted_at is not null from core.event_handled where handler_name = $1", handler)
			have := haveKeys[handler]
			switch {
			case len(left) == 0 && have[1] == 0:
				have[1] = day
			case len(left) > 0 && left[0]:
				if have[0] == 0 {
					have[0] = day
				}
			case len(left) > 0:
				have[0] = 0 // or undone
			}
			if there && len(left) == 0 {
				t.Fatalf("day %d: what handled the event is forgotten while it may come back", day)
			}
			haveKeys[handler] = have
		}
	}
	if haveTombstoned != h.tombstoned || haveDeleted != h.deleted {
		t.Errorf("the event is tombstoned on day %d and deleted on day %d, want %d and %d", haveTombstoned, haveDeleted, h.tombstoned, h.deleted)
	}
	for handler := range h.handled {
		if haveKeys[handler] != h.keys[handler] {
			t.Errorf("the key of %s is tombstoned and deleted on days %v, want %v", handler, haveKeys[handler], h.keys[handler])
		}
	}
}

func TestSweepsOfOperatorActions(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for i := range 5 {
		exec(t, d.admin, "insert into core.operator_actions (action, acted_by, acted_at) values ('replay', 'somebody', clock_timestamp() - make_interval(days => $1))", 363+i)
	}
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker")
	if rows := sweepAll(t, worker); !maps.Equal(rows, swept{"operator_action.tombstoned": 3}) {
		t.Errorf("swept %v", rows)
	}
	d.pass(t, 7)
	if rows := sweepAll(t, worker); !maps.Equal(rows, swept{"operator_action.tombstoned": 2, "operator_action.deleted": 3}) {
		t.Errorf("swept a week later %v", rows)
	}
}

// due leaves n delivered events and their handled keys, all of them due to be tombstoned.
func (d database) due(t testing.TB, n int) {
	t.Helper()
	exec(t, d.admin, "delete from core.event_handled")
	d.rows(t, n, "status = 'delivered', delivered_at = clock_timestamp() - interval '70 days', occurred_at = clock_timestamp() - interval '70 days'")
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class, handled_at)
		select 'worlds.a', 'h' || idempotency_key, gen_random_uuid(), event_type, content_class, delivered_at from core.outbox`)
}

func TestSweepsAreBounded(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 300)
	calls, more := 0, true
	for more {
		var rows swept
		rows, more, _ = sweepOnce(t, d.admin, "p_max_rows => 70")
		calls++
		total := 0
		for _, n := range rows {
			total += n
		}
		if total > 70 {
			t.Fatalf("a call that may sweep 70 rows swept %v", rows)
		}
		if calls > 20 {
			t.Fatal("a sweep comes to no end")
		}
	}
	if n := value[int](t, d.admin, "select (select count(*) from core.outbox where deleted_at is not null) + (select count(*) from core.event_handled where deleted_at is not null)"); n != 600 {
		t.Errorf("%d rows are tombstoned, want 600", n)
	}
	d.pass(t, 7)
	if rows, more, _ := sweepOnce(t, d.admin, "p_max_rows => 70"); !maps.Equal(rows, swept{"outbox_row.deleted": 70}) || !more {
		t.Errorf("swept %v, more is left: %t", rows, more)
	}
	if rows := sweepAll(t, d.admin); !maps.Equal(rows, swept{"outbox_row.deleted": 230, "event_handled.deleted": 300}) {
		t.Errorf("swept %v", rows)
	}
	// where each row takes its time, a call ends with the statement in which the time is up
	d.due(t, 2500)
	exec(t, d.admin, "update core.outbox set deleted_at = now() - interval '8 days'")
	exec(t, d.admin, `create function core.slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.0001); return old; end';
		create trigger slow before delete on core.outbox for each row execute function core.slow()`)
	if rows, more, _ := sweepOnce(t, d.admin, "p_max_rows => 10000, p_max_seconds => 0.06"); rows["outbox_row.deleted"] != 1000 || !more {
		t.Errorf("with time for one statement, swept %v, more is left: %t", rows, more)
	}
	exec(t, d.admin, `drop trigger slow on core.outbox; update core.outbox set deleted_at = null;
		create or replace function core.slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.002); return new; end';
		create trigger slow before update on core.outbox for each row execute function core.slow()`)
	if rows, more, _ := sweepOnce(t, d.admin, "p_max_rows => 10000, p_max_seconds => 0.3"); rows["outbox_row.tombstoned"] != 100 || !more {
		t.Errorf("with time for a hundred rows, swept %v, more is left: %t", rows, more)
	}
}

// What is in front and stays, of whatever age, keeps a sweep from nothing behind it, and more is said to be left as long as it is.
func TestSweepsPassWhatStays(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, c := range []struct{ events, pending, maxRows, calls int }{
		{events: 2300, pending: 1, maxRows: 1000, calls: 4},
		{events: 2300, pending: 1000, maxRows: 1000, calls: 3},
		{events: 1010, pending: 1000, maxRows: 1, calls: 12},
		{events: 60, pending: 7, maxRows: 10, calls: 8},
	} {
		exec(t, d.admin, "delete from core.retention_progress; delete from core.retention_runs")
		d.rows(t, c.events, "status = 'delivered', delivered_at = now() - interval '59 days', occurred_at = now() - interval '60 days'")
		exec(t, d.admin, "update core.outbox set status = 'pending', delivered_at = null where id <= $1", key(c.pending))
		run, left, calls := uuid.New(), c.events-c.pending, 0
		if counted := preview(t, d.admin, ""); !maps.Equal(counted, swept{"outbox_row.tombstoned": left}) {
			t.Fatalf("previewed is %v, want %d", counted, left)
		}
		for more := true; more; {
			var rows swept
			rows, more, _ = sweepOnce(t, d.admin, fmt.Sprintf("%d, p_max_seconds => 10, p_run => '%s'", c.maxRows, run))
			if n := rows["outbox_row.tombstoned"]; n != min(left, c.maxRows) {
				t.Fatalf("%+v: call %d sweeps %d rows of %d", c, calls+1, n, left)
			}
			left -= rows["outbox_row.tombstoned"]
			calls++
		}
		if left != 0 || calls > c.calls {
			t.Errorf("%+v: after %d calls, and no more to do, %d rows are left", c, calls, left)
		}
	}
}

// That failed events were undiscarded is read from them: how much operators have done is nothing to a sweep.
func TestSweepsOfFailedEventsBesideManyActions(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const events, actions = 300, 400
	d.rows(t, events, "status = 'failed', claimed_at = now() - interval '50 days', occurred_at = now() - interval '50 days'")
	exec(t, d.admin, `insert into core.operator_actions (action, acted_by, event_ids)
		select 'undiscard', 'somebody', array[gen_random_uuid()] from generate_series(1, $1)`, actions)
	operator := d.login(t, "spectral_operator")
	exec(t, operator, "select core.outbox_discard($1, 'anna')", key(1))
	exec(t, operator, "select core.outbox_undiscard($1, 'anna')", key(1))
	worker := d.login(t, "spectral_worker")
	read := func() int {
		exec(t, worker, "select pg_stat_force_next_flush()")
		exec(t, worker, "select 1")
		return value[int](t, d.admin, `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'operator_actions')::int
			+ (select seq_tup_read from pg_stat_user_tables where relname = 'operator_actions')::int`)
	}
	before := read()
	exec(t, worker, "set role spectral_worker")
	if rows := preview(t, worker, ""); !maps.Equal(rows, swept{"outbox_row.tombstoned": events - 1}) {
		t.Errorf("previewed is %v", rows)
	}
	if rows := sweepAll(t, worker); !maps.Equal(rows, swept{"outbox_row.tombstoned": events - 1}) {
		t.Errorf("swept %v", rows)
	}
	if n := read() - before; n > 20*actions {
		t.Errorf("sweeping %d failed events reads %d operators' actions, of %d", events, n, actions)
	}
}

// A sweep sees what is there now: at a higher isolation level it would judge keys by what was pending when its transaction began.
func TestSweepsRefuseOldSnapshots(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 5)
	before := d.versions(t)
	for isolation, code := range map[pgx.TxIsoLevel]string{pgx.RepeatableRead: "SP053", pgx.Serializable: "SP053", pgx.ReadCommitted: ""} {
		tx, err := d.admin.BeginTx(deadline(t), pgx.TxOptions{IsoLevel: isolation})
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(deadline(t), "select * from core.retention_sweep()")
		if have := sqlstate(t, err); have != code {
			t.Errorf("a sweep at %s: SQLSTATE %q, want %q", isolation, have, code)
		}
		if err := tx.Rollback(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	if after := d.versions(t); !slices.Equal(before, after) {
		t.Error("a sweep that was refused, or rolled back, has changed something")
	}
}

// Whoever calls, however: no more goes than the stored policies allow.
func TestSweepRefusals(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 5)
	before := d.versions(t)
	for arguments, code := range map[string]string{
		"p_max_rows => 0": "SP051", "p_max_rows => -1": "SP051", "p_max_rows => 10001": "SP051", "p_max_rows => null": "SP051",
		"p_max_seconds => 0": "SP051", "p_max_seconds => 11": "SP051", "p_max_seconds => 'NaN'": "SP051", "p_max_seconds => null": "SP051",
		"p_walk_every => -1": "SP051", "p_walk_every => 'infinity'": "SP051", "p_walk_every => null": "SP051",
		"p_swept_by => ' '": "SP030", "p_swept_by => repeat('x', 257)": "SP030",
	} {
		_, err := d.admin.Exec(deadline(t), "select * from core.retention_sweep("+arguments+")")
		if have := sqlstate(t, err); have != code {
			t.Errorf("%s: SQLSTATE %q, want %s", arguments, have, code)
		}
	}
	for _, arguments := range []string{"p_max_rows => 0", "p_max_rows => null", "p_max_seconds => -1", "p_max_seconds => 'NaN'", "p_max_seconds => 3601"} {
		_, err := d.admin.Exec(deadline(t), "select * from core.retention_preview("+arguments+")")
		if have := sqlstate(t, err); have != "SP051" {
			t.Errorf("preview, %s: SQLSTATE %q", arguments, have)
		}
	}
	for _, call := range []string{
		"retention_status(null)", "retention_status(-5)", "retention_status(36501)", "retention_due_in(null)", "retention_due_in(0)",
		"retention_due_in(-1)", "retention_due_in('NaN')", "retention_due_in('infinity')", "retention_due_in(86401)",
	} {
		_, err := d.admin.Exec(deadline(t), "select * from core."+call)
		if have := sqlstate(t, err); have != "SP051" {
			t.Errorf("%s: SQLSTATE %q", call, have)
		}
	}
	// policies written past the triggers
	exec(t, d.admin, "begin; set local session_replication_role = replica; update core.retention_policies set active_ttl_days = 50 where subject = 'event_handled'; commit")
	_, err := d.admin.Exec(deadline(t), "select * from core.retention_sweep()")
	if have := sqlstate(t, err); have != "SP050" {
		t.Errorf("a sweep by broken policies: SQLSTATE %q", have)
	}
	if fault := value[string](t, d.admin, "select policy_fault from core.retention_status()"); !strings.Contains(fault, "50 days") {
		t.Errorf("the status says of them: %s", fault)
	}
	exec(t, d.admin, "update core.retention_policies set active_ttl_days = 60 where subject = 'event_handled'")
	if after := d.versions(t); !slices.Equal(before, after) {
		t.Errorf("a refused sweep has changed\n%v to\n%v", before, after)
	}
	for role, allowed := range map[string]bool{
		"spectral_worker": true, "spectral_operator": true, "spectral_retention": true,
		"spectral_publisher": false, "spectral_platform": false, "spectral_worlds": false,
	} {
		login := d.login(t, role)
		exec(t, login, "set role "+role)
		_, err := login.Exec(deadline(t), "select * from core.retention_sweep(1)")
		if (err == nil) != allowed {
			t.Errorf("%s sweeps: %v", role, err)
		}
		_, err = login.Exec(deadline(t), "select core.retention_due_in(3600), core.retention_status()")
		if (err == nil) != allowed {
			t.Errorf("%s asks when to sweep: %v", role, err)
		}
		if _, err := login.Exec(deadline(t), "delete from core.outbox"); sqlstate(t, err) != denied {
			t.Errorf("%s deletes events: %v", role, err)
		}
		if _, err := login.Exec(deadline(t), "update core.retention_policies set active_ttl_days = 1"); sqlstate(t, err) != denied {
			t.Errorf("%s changes policies: %v", role, err)
		}
	}
}

// A person's sweep is noted once for each run, a worker's is not; nobody goes on with another one's run.
func TestSweepsByHandAreNoted(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 30)
	worker, operator := d.login(t, "spectral_worker"), d.login(t, "spectral_operator")
	exec(t, worker, "set role spectral_worker")
	exec(t, operator, "set role spectral_operator")
	run, workers := uuid.New(), uuid.New()
	sweepOnce(t, worker, fmt.Sprintf("10, p_run => '%s', p_swept_by => 'worker 1'", workers))
	sweepOnce(t, operator, fmt.Sprintf("10, p_run => '%s', p_swept_by => 'me'", run))
	// the first ends the walk that the worker began, the second makes one of its own
	sweepOnce(t, operator, fmt.Sprintf("1000, p_run => '%s', p_swept_by => 'me'", run))
	sweepOnce(t, operator, fmt.Sprintf("1000, p_run => '%s', p_swept_by => 'me'", run))
	if have := values[string](t, d.admin, "select action || ' ' || acted_by || ' ' || (details ->> 'run_id') from core.operator_actions"); !slices.Equal(have, []string{"sweep me " + run.String()}) {
		t.Errorf("noted is %v", have)
	}
	have := values[string](t, d.admin, `select swept_by || ' ' || by_hand || ' ' || (steps ->> 'outbox_row.tombstoned') || ' ' || (ended_at is not null)
		from core.retention_runs order by started_at`)
	if !slices.Equal(have, []string{"worker 1 false 10 false", "me true 20 true"}) {
		t.Errorf("the runs are %v", have)
	}
	_, err := operator.Exec(deadline(t), "select * from core.retention_sweep(10, p_run => $1)", workers)
	if have := sqlstate(t, err); have != "SP052" {
		t.Errorf("somebody else's run: SQLSTATE %q", have)
	}
}

// One leads; whoever is killed in the middle leaves nothing half done, and the next one goes on.
func TestOneSweepLeads(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 40)
	first := d.login(t, "spectral_retention")
	tx := begin(t, first)
	if rows, _, led := sweepOnce(t, tx, "10"); !led || rows["outbox_row.tombstoned"] != 10 {
		t.Fatalf("leads: %t, swept %v", led, rows)
	}
	second := d.login(t, "spectral_retention")
	if rows, _, led := sweepOnce(t, second, "10"); led || len(rows) > 0 {
		t.Fatalf("beside the first, the second swept %v", rows)
	}
	pid := first.PgConn().PID()
	exec(t, d.admin, "select pg_terminate_backend($1)", pid)
	waitFor(t, d.admin, fmt.Sprintf("select not exists (select from pg_stat_activity where pid = %d)", pid))
	if rows := sweepAll(t, second); !maps.Equal(rows, swept{"outbox_row.tombstoned": 40, "event_handled.tombstoned": 40}) {
		t.Errorf("after the first was killed, the second swept %v", rows)
	}
}

// Nobody waits: not the sweep for a row that somebody has locked, nor anybody for more than its rows.
func TestSweepsWaitForNobody(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 5)
	d.alter(t, 3, "status = 'failed', claimed_at = delivered_at")
	d.alter(t, 4, "deleted_at = now() - interval '8 days'")
	holder := begin(t, d.login(t, "spectral_owner"))
	exec(t, holder, "select from core.outbox where id in ($1, $2) for update", key(3), key(4))
	exec(t, holder, "select from core.event_handled where idempotency_key = 'hk2' for update")
	exec(t, d.admin, "set statement_timeout = '20s'")
	if rows := sweepAll(t, d.admin); !maps.Equal(rows, swept{"outbox_row.tombstoned": 3, "event_handled.tombstoned": 4}) {
		t.Errorf("beside a lock, swept %v", rows)
	}
	// the failed one is replayed in the meantime
	exec(t, holder, "update core.outbox set "+replayed+" where id = $1", key(3))
	if err := holder.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if rows := sweepAll(t, d.admin); !maps.Equal(rows, swept{"outbox_row.deleted": 1, "event_handled.tombstoned": 1}) {
		t.Errorf("after it, swept %v", rows)
	}
	// what a sweep has in hand keeps nobody from publishing, claiming, delivering and handling
	d.rows(t, 30, "")
	exec(t, d.admin, "update core.outbox set status = 'delivered', delivered_at = now() - interval '50 days', occurred_at = now() - interval '50 days' where id <= $1", key(20))
	sweeping := begin(t, d.login(t, "spectral_retention"))
	if rows, _, _ := sweepOnce(t, sweeping, ""); rows["outbox_row.tombstoned"] != 20 {
		t.Fatalf("swept %v", rows)
	}
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set lock_timeout = '100ms'; set role spectral_worker")
	if n := value[int](t, worker, `with claimed as (select * from core.outbox_claim(1, 'worlds.world_model_card.published', 10, '-infinity', gen_random_uuid(), false))
		select core.outbox_deliver(array_agg(event_id), array_agg(occurred_at)) from claimed`); n != 10 {
		t.Errorf("%d events are delivered beside a sweep, want 10", n)
	}
	exec(t, worker, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select 'worlds.z', i::text, gen_random_uuid(), 'a.b', 'workspace' from generate_series(1, 100) i on conflict do nothing`)
	exec(t, d.admin, "set lock_timeout = '100ms'; select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{}')")
}

// A replay that commits while the sweep is about to tombstone the event wins, and so does an undiscard over a deletion.
func TestSweepsRaceReplays(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const n = 200
	replayed := 0
	for round := range 3 {
		d.rows(t, n, "status = 'failed', claimed_at = now() - interval '50 days', occurred_at = now() - interval '50 days'")
		// those that are discarded may be undiscarded for a moment yet, the first ones the shortest, and then deleted
		exec(t, d.admin, `update core.outbox o set deleted_at = t.at, discarded_at = t.at
			from (select id, clock_timestamp() - interval '7 days' + make_interval(secs => 0.02 + 0.001 * ($1 - (payload ->> 'n')::int)) as at from core.outbox) t
			where o.id = t.id and (payload ->> 'n')::int % 2 = 0`, n)
		operator := d.login(t, "spectral_operator")
		exec(t, operator, "set role spectral_operator")
		ctx := deadline(t)
		replays, begun := make(chan error, 1), make(chan struct{})
		alive := []uuid.UUID{}
		go func() {
			begin := sync.OnceFunc(func() { close(begun) })
			defer begin()
			for i := n; i > 0; i -= 3 - round%2 {
				var err error
				if i%2 == 0 {
					_, err = operator.Exec(ctx, "select core.outbox_undiscard($1, 'anna')", key(i))
				}
				if err == nil {
					_, err = operator.Exec(ctx, "select core.outbox_replay($1, 1, 'anna')", key(i))
				}
				refused, ok := errors.AsType[*pgconn.PgError](err)
				switch {
				case err == nil:
					alive = append(alive, key(i))
				case !ok || refused.Code != "SP031" && refused.Code != "SP033": // it is gone, or a tombstone
					replays <- fmt.Errorf("event %d: %w", i, err)
					return
				}
				if i <= n-9 {
					begin()
				}
			}
			replays <- nil
		}()
		<-begun
		for more := true; more; {
			_, more, _ = sweepOnce(t, d.admin, "7")
		}
		if err := <-replays; err != nil {
			t.Fatal(err)
		}
		sweepAll(t, d.admin)
		if have := value[int](t, d.admin, "select count(*) from core.outbox where id = any ($1) and status = 'pending' and deleted_at is null", alive); have != len(alive) {
			t.Errorf("%d of %d events that were replayed in time are left", have, len(alive))
		}
		replayed += len(alive)
		if have := value[int](t, d.admin, "select count(*) from core.outbox where deleted_at is null"); have != len(alive) {
			t.Errorf("%d events are no tombstones, want the %d that were replayed", have, len(alive))
		}
		t.Logf("%d were replayed, %d of them undiscarded before", len(alive), value[int](t, d.admin, "select count(*) from core.operator_actions where action = 'undiscard'"))
		exec(t, d.admin, "delete from core.operator_actions")
	}
	if replayed == 0 { // in the second round it may be none, on a machine that is slow for a fifth of a second
		t.Error("nothing was replayed in time")
	}
}

// Rows of two partitions have the same places: a sweep takes none for another.
func TestSweepsOfAPartitionedOutbox(t *testing.T) {
	t.Parallel()
	d := setup(t)
	// functions whose bodies are bound to the table, made anew for the other one
	bound := values[string](t, d.admin, `select distinct pg_get_functiondef(objid) from pg_depend
		where classid = 'pg_proc'::regclass and refclassid = 'pg_class'::regclass and refobjid = 'core.outbox'::regclass`)
	exec(t, d.admin, `
		set role spectral_owner;
		alter table core.outbox rename to outbox_whole;
		create table core.outbox (like core.outbox_whole including all) partition by range (occurred_at);
		create table core.outbox_old partition of core.outbox for values from (minvalue) to (now() - interval '60 days');
		create table core.outbox_new partition of core.outbox for values from (now() - interval '60 days') to (maxvalue);`)
	for _, definition := range bound {
		exec(t, d.admin, definition)
	}
	exec(t, d.admin, "reset role")
	const n = 30
	d.rows(t, 2*n, "")
	// each pending event, and each that was delivered lately, has the place of one that is due
	exec(t, d.admin, `
		create temporary table before as select * from core.outbox;
		truncate core.outbox;
		insert into core.outbox select (b).* from (select jsonb_populate_record(null::core.outbox, to_jsonb(b) || jsonb_build_object(
			'status', s.status, 'occurred_at', s.at, 'delivered_at', case when s.status = 'delivered' then s.at end)) as b
		from before b, lateral (select case when (b.payload ->> 'n')::int % 4 = 0 then 'pending' else 'delivered' end as status,
			now() - case when (b.payload ->> 'n')::int % 2 = 0 then interval '1 day' else interval '70 days' end as at) s order by b.id) x`)
	if have := values[int](t, d.admin, "select count(*)::int from core.outbox group by tableoid"); !slices.Equal(have, []int{n, n}) {
		t.Fatalf("the partitions have %v rows", have)
	}
	if counted := preview(t, d.admin, ""); !maps.Equal(counted, swept{"outbox_row.tombstoned": n}) {
		t.Errorf("previewed is %v", counted)
	}
	if rows := sweepAll(t, d.admin); !maps.Equal(rows, swept{"outbox_row.tombstoned": n}) {
		t.Errorf("swept %v", rows)
	}
	exec(t, d.admin, "update core.outbox set deleted_at = deleted_at - interval '8 days'")
	if rows := sweepAll(t, d.admin); !maps.Equal(rows, swept{"outbox_row.deleted": n}) {
		t.Errorf("swept a week later %v", rows)
	}
	if have := values[int](t, d.admin, "select count(*)::int from core.outbox where deleted_at is null group by status order by status"); !slices.Equal(have, []int{n / 2, n / 2}) {
		t.Errorf("left are %v events, want as many delivered lately and pending", have)
	}
}

func TestPreviewsChangeNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 20)
	exec(t, d.admin, "update core.outbox set deleted_at = now() - interval '8 days' where (payload ->> 'n')::int <= 5")
	operator := d.login(t, "spectral_operator")
	exec(t, operator, "set role spectral_operator; set default_transaction_read_only = on")
	before := d.versions(t)
	if rows := preview(t, operator, ""); !maps.Equal(rows, swept{"outbox_row.deleted": 5, "outbox_row.tombstoned": 15, "event_handled.tombstoned": 20}) {
		t.Errorf("counted %v", rows)
	}
	if rows := preview(t, operator, "7"); !maps.Equal(rows, swept{"outbox_row.deleted": 5, "outbox_row.tombstoned": 7, "event_handled.tombstoned": 7}) {
		t.Errorf("counted at most seven: %v", rows)
	}
	if after := d.versions(t); !slices.Equal(before, after) {
		t.Error("a preview has changed something")
	}
	if n := value[int](t, d.admin, "select count(*) from core.retention_runs"); n != 0 {
		t.Errorf("a preview has left %d runs", n)
	}
}

func TestFailedEventsAboutToExpire(t *testing.T) {
	t.Parallel()
	d := setup(t)
	expiring := func() (n int) {
		t.Helper()
		return value[int](t, d.admin, "select failed_expiring from core.retention_status()")
	}
	if n := expiring(); n != 0 {
		t.Errorf("%d of none", n)
	}
	d.rows(t, 6, "status = 'failed', occurred_at = now() - interval '100 days', claimed_at = now() - make_interval(days => 35 + (o.payload ->> 'n')::int)") // 36 to 41 days ago
	d.alter(t, 6, "deleted_at = now()")
	d.alter(t, 5, "occurred_at = now() + interval '1 hour'")
	if n := expiring(); n != 2 { // the 4th, of day 39, and the 3rd, of day 38
		t.Errorf("%d failed events are about to expire, want 2", n)
	}
	first := value[time.Time](t, d.admin, "select failed_expire_first_at from core.retention_status()")
	if left := time.Until(first); left < 5*24*time.Hour || left > 6*24*time.Hour+time.Hour {
		t.Errorf("the first expires in %s, want about six days", left)
	}
	if n := value[int](t, d.admin, "select failed_expiring from core.retention_status(30)"); n != 4 {
		t.Errorf("%d within 30 days, want 4", n)
	}
	// what was undiscarded stays for the days of grace once more: what is counted is what a sweep takes, and when
	d.rows(t, 2, "status = 'failed', occurred_at = now() - interval '100 days', claimed_at = now() - interval '60 days', undiscarded_at = now() - make_interval(days => (o.payload ->> 'n')::int)")
	if n := value[int](t, d.admin, "select failed_expiring from core.retention_status(5)"); n != 1 { // the second, in five days
		t.Errorf("of two that were undiscarded %d are about to expire, want 1", n)
	}
	first = value[time.Time](t, d.admin, "select failed_expire_first_at from core.retention_status(5)")
	if left := time.Until(first); left < 4*24*time.Hour || left > 5*24*time.Hour {
		t.Errorf("the first of those expires in %s, want five days", left)
	}
	if n := value[int](t, d.admin, "select failed_expiring from core.retention_status(0)"); n != 0 {
		t.Errorf("%d have expired, and a sweep takes none", n)
	}
	if rows := sweepAll(t, d.admin); rows["outbox_row.tombstoned"] != 0 {
		t.Errorf("the sweep took %v", rows)
	}
}

// Workers' runs are an interval apart, whichever of them makes them; one that was cut short is taken up soon.
func TestWhenTheNextSweepIsDue(t *testing.T) {
	t.Parallel()
	d := setup(t)
	due := func() float64 {
		t.Helper()
		return value[float64](t, d.admin, "select core.retention_due_in(3600)")
	}
	if due() != 0 {
		t.Error("the first run is not due")
	}
	sweepOnce(t, d.admin, "") // by hand
	if due() != 0 {
		t.Error("a run by hand counts")
	}
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker")
	sweepOnce(t, worker, "")
	if left := due(); left < 3500 || left > 3600 {
		t.Errorf("after a run the next is due in %g s", left)
	}
	d.due(t, 5)
	sweepOnce(t, worker, "1")
	if left := due(); left < 50 || left > 60 {
		t.Errorf("after a run that was cut short the next is due in %g s", left)
	}
	exec(t, d.admin, "update core.retention_runs set started_at = started_at + interval '10 days', updated_at = updated_at + interval '10 days'")
	if left := due(); left > 3600 {
		t.Errorf("after the clock was set back the next is due in %g s", left)
	}
}

// Plans that a session made when there was nothing: what is read grows with what is due, not with what there is times calls.
func TestPlansOfSweepsMadeForEmptyTables(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "analyze core.outbox; analyze core.event_handled")
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker; set plan_cache_mode = force_generic_plan")
	sweepOnce(t, worker, "")
	entries := func() int {
		exec(t, worker, "select pg_stat_force_next_flush()")
		exec(t, worker, "select 1")
		return value[int](t, d.admin, `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname in ('outbox', 'event_handled'))::int
			+ (select sum(seq_tup_read) from pg_stat_user_tables where relname in ('outbox', 'event_handled'))::int`)
	}
	const n = 4000
	d.due(t, n)
	exec(t, d.admin, "update core.outbox set idempotency_key = id::text")
	exec(t, d.admin, "select pg_stat_force_next_flush()")
	exec(t, d.admin, "select 1")
	for _, phase := range []string{"tombstoning", "deleting"} {
		before := entries()
		run := uuid.New()
		for more := true; more; {
			_, more, _ = sweepOnce(t, worker, fmt.Sprintf("400, p_run => '%s'", run))
		}
		if read := entries() - before; read > 25*n {
			t.Errorf("%s %d events and as many keys in batches of 400 reads %d entries", phase, n, read)
		}
		d.pass(t, 7)
		exec(t, d.admin, "select pg_stat_force_next_flush()")
		exec(t, d.admin, "select 1")
	}
	if left := value[int](t, d.admin, "select (select count(*) from core.outbox) + (select count(*) from core.event_handled)"); left != 0 {
		t.Errorf("%d rows are left", left)
	}
}
