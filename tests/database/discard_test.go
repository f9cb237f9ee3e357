package database_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/tests/pgtest"
)

func TestDiscardAndUndiscard(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 2, failedRow)
	before, at := d.row(t, 1), value[time.Time](t, d.admin, "select clock_timestamp()")
	exec(t, operator, "select core.outbox_discard($1, ' anna ', ' stale ')", key(1))
	d.wantChanges(t, 1, before, at, map[string]string{
		"deleted_at": "between b.at and clock_timestamp()", "discarded_at": "= o.deleted_at", "failure_history": "-> 0 ->> 'discarded_by' = 'anna'",
	})
	if entry := d.history(t, 1)[0]; len(entry) != 3 || entry["reason"] != "stale" || entry["discarded_at"] == nil {
		t.Errorf("history has %v", entry)
	}
	if d.holds(t, 2, "o.deleted_at is not null") {
		t.Error("another event is discarded, too")
	}
	before = d.row(t, 1)
	exec(t, operator, "select core.outbox_undiscard($1, 'bert')", key(1))
	d.wantChanges(t, 1, before, at, map[string]string{
		"deleted_at": "is null", "discarded_at": "is null", "undiscarded_at": "between b.at and clock_timestamp()", "failure_history": "-> 1 ->> 'undiscarded_by' = 'bert'",
	})
	exec(t, operator, "select core.outbox_discard($1, 'anna')", key(1))
	if !d.holds(t, 1, "o.undiscarded_at is null") {
		t.Error("what is discarded again is undiscarded as well")
	}
	exec(t, operator, "select core.outbox_undiscard($1, 'bert')", key(1))
	// and then as if nothing had been
	if cycle := value[int](t, operator, "select core.outbox_replay($1, 3)", key(1)); cycle != 1 {
		t.Errorf("cycle %d", cycle)
	}
	if have := d.actions(t)[:2]; !slices.Equal(have, []string{`discard anna 1 {"asked": 1, "reason": "stale"}`, `undiscard bert 1 {"asked": 1}`}) {
		t.Errorf("noted is %q", have)
	}
}

func TestDiscardRefuses(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 9, failedRow)
	d.alter(t, 2, "status = 'pending'")
	d.alter(t, 3, "status = 'in_flight', claim_token = gen_random_uuid()")
	d.alter(t, 4, "status = 'delivered'")
	d.alter(t, 5, "deleted_at = clock_timestamp()")
	d.alter(t, 6, "deleted_at = clock_timestamp(), discarded_at = clock_timestamp()")
	d.alter(t, 7, "deleted_at = clock_timestamp() - interval '7 days', discarded_at = clock_timestamp() - interval '7 days'")
	exec(t, d.admin, "update core.outbox o set id = $1 where o.id = $2", key(8), key(9))
	discard := func(n int, more string) string {
		return fmt.Sprintf("select core.outbox_discard('%s', %s)", key(n), more)
	}
	undiscard := func(n int) string { return fmt.Sprintf("select core.outbox_undiscard('%s', 'anna')", key(n)) }
	d.wantRefused(t, operator,
		refusal{"unknown", discard(77, "'anna'"), "SP031", "event_id", "not in core.outbox"},
		refusal{"pending", discard(2, "'anna'"), "SP032", "event_id", "is pending"},
		refusal{"in flight", discard(3, "'anna'"), "SP032", "event_id", "is in_flight"},
		refusal{"delivered", discard(4, "'anna'"), "SP032", "event_id", "is delivered"},
		refusal{"expired", discard(5, "'anna'"), "SP033", "event_id", "retention"},
		refusal{"discarded", discard(6, "'anna'"), "SP033", "event_id", "was discarded"},
		refusal{"twin", discard(8, "'anna'"), "SP035", "event_id", "occurred_at"},
		refusal{"blank name", discard(1, "''"), "SP030", "acted_by", "blank"},
		refusal{"blank reason", discard(1, "'anna', ' '"), "SP030", "reason", "blank"},
		refusal{"long reason", discard(1, "'anna', repeat('x', 1025)"), "SP030", "reason", "1025"},
		refusal{"too many", "select core.outbox_discard_many(array_fill(gen_random_uuid(), array[1001]), 'anna')", "SP030", "event_ids", "1001"},
		refusal{"undiscard unknown", undiscard(77), "SP031", "event_id", "not in core.outbox"},
		refusal{"undiscard a failed one", undiscard(1), "SP034", "event_id", "is not discarded, it is failed"},
		refusal{"undiscard a pending one", undiscard(2), "SP034", "event_id", "it is pending"},
		refusal{"undiscard an expired one", undiscard(5), "SP033", "event_id", "not discarded by an operator"},
		refusal{"undiscard too late", undiscard(7), "SP033", "event_id", "7 days"},
		refusal{"undiscard blank", strings.Replace(undiscard(6), "anna", " ", 1), "SP030", "acted_by", "blank"},
		refusal{"undiscard twin", undiscard(8), "SP035", "event_id", "occurred_at"},
	)
}

func TestDiscardAndUndiscardMany(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 9, failedRow)
	d.alter(t, 2, "status = 'pending'")
	d.alter(t, 3, "deleted_at = clock_timestamp()")
	d.alter(t, 5, "claimed_at = clock_timestamp() + interval '1 h'")
	d.alter(t, 6, "deleted_at = clock_timestamp() - interval '8 days', discarded_at = clock_timestamp() - interval '8 days'")
	exec(t, d.admin, "update core.outbox o set id = $1 where o.id = $2", key(8), key(9))
	locked := begin(t, pgtest.Conn(t, d.at))
	exec(t, locked, "select from core.outbox where id = $1 for update", key(4))
	ids := []uuid.UUID{}
	for n := range 9 {
		ids = append(ids, key(n+1))
	}
	discard := func() []uuid.UUID {
		return values[uuid.UUID](t, operator, "select event_id from core.outbox_discard_many($1, 'anna', 'why', p_failed_before => clock_timestamp()) order by 1", ids)
	}
	undiscard := func() []uuid.UUID {
		return values[uuid.UUID](t, operator, "select event_id from core.outbox_undiscard_many($1, 'bert') order by 1", ids)
	}
	if have := discard(); !slices.Equal(have, []uuid.UUID{key(1), key(7)}) {
		t.Errorf("discarded are %v", have)
	}
	if have := discard(); len(have) > 0 {
		t.Errorf("discarded again are %v", have)
	}
	if have := undiscard(); !slices.Equal(have, []uuid.UUID{key(1), key(7)}) {
		t.Errorf("undiscarded are %v", have)
	}
	if have := undiscard(); len(have) > 0 {
		t.Errorf("undiscarded again are %v", have)
	}
	if have := d.actions(t); !slices.Equal(have, []string{`discard anna 2 {"asked": 9, "reason": "why"}`, `undiscard bert 2 {"asked": 9}`}) {
		t.Errorf("noted is %q", have)
	}
}

func TestRetryNow(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	waiting := "available_at = clock_timestamp() + interval '1 h', attempts = 3, last_error = 'E: a.b: no', handler_failures = '{\"a.b\": {\"failures\": 6, \"parked\": true}}'"
	d.rows(t, 9, waiting)
	d.alter(t, 2, "available_at = clock_timestamp() - interval '1 s'")
	d.alter(t, 3, failedRow)
	d.alter(t, 4, "status = 'in_flight', claim_token = gen_random_uuid()")
	d.alter(t, 5, "status = 'delivered'")
	d.alter(t, 6, "deleted_at = clock_timestamp()")
	d.alter(t, 9, "channel = 'outbox_gen_1_slow'")
	locked := begin(t, pgtest.Conn(t, d.at))
	exec(t, locked, "select from core.outbox where id = $1 for update", key(7))
	retry := func(n int, more string) string {
		return fmt.Sprintf("select core.outbox_retry_now('%s'%s)", key(n), more)
	}
	d.wantRefused(t, operator,
		refusal{"unknown", retry(77, ""), "SP031", "event_id", "not in core.outbox"},
		refusal{"due", retry(2, ""), "SP034", "event_id", "is due already"},
		refusal{"failed", retry(3, ""), "SP032", "event_id", "core.outbox_replay("},
		refusal{"in flight", retry(4, ""), "SP032", "event_id", "in_flight"},
		refusal{"delivered", retry(5, ""), "SP032", "event_id", "delivered"},
		refusal{"tombstoned", retry(6, ""), "SP033", "event_id", "retention"},
		refusal{"locked", retry(7, ""), "SP032", "event_id", "changing it at this moment"},
		refusal{"blank name", retry(1, ", ''"), "SP030", "acted_by", "blank"},
		refusal{"too many", "select core.outbox_retry_now_many(array_fill(gen_random_uuid(), array[1001]))", "SP030", "event_ids", "1001"},
	)
	b := d.listen(t, "outbox_gen_1", "outbox_gen_1_slow")
	before, at := d.row(t, 1), value[time.Time](t, d.admin, "select clock_timestamp()")
	exec(t, operator, retry(1, ", 'anna'"))
	// a parked handler stays parked
	d.wantChanges(t, 1, before, at, map[string]string{"available_at": "between b.at and clock_timestamp()"})
	if have := b.await(t, 1); have["outbox_gen_1"] != 1 {
		t.Errorf("it rings %v", have)
	}
	ids := []uuid.UUID{}
	for n := range 9 {
		ids = append(ids, key(n+1))
	}
	if have := values[uuid.UUID](t, operator, "select event_id from core.outbox_retry_now_many($1, 'bert') order by 1", ids); !slices.Equal(have, []uuid.UUID{key(8), key(9)}) {
		t.Errorf("due now are %v", have)
	}
	if have, want := b.await(t, 2), (map[string]int{"outbox_gen_1": 1, "outbox_gen_1_slow": 1}); !maps.Equal(have, want) {
		t.Errorf("it rings %v", have)
	}
	if have := d.actions(t); !slices.Equal(have, []string{`retry_now anna 1 {"asked": 1}`, `retry_now bert 2 {"asked": 9}`}) {
		t.Errorf("noted is %q", have)
	}
}

// A row in a worker's hands keeps the time that its dispatch is known by.
func TestRetryNowLeavesADispatchAlone(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 1, "")
	worker := begin(t, d.login(t, "spectral_worker"))
	claimed := value[time.Time](t, worker, "select available_at from core.outbox_claim(1, 'worlds.world_model_card.published', 1, '-infinity', gen_random_uuid(), false)")
	d.wantRefused(t, operator, refusal{"in hand", fmt.Sprintf("select core.outbox_retry_now('%s')", key(1)), "SP034", "event_id", "is due already"})
	occurred := value[time.Time](t, d.admin, "select occurred_at from core.outbox")
	if !value[bool](t, worker, "select core.outbox_retry($1, $2, $3, 60, 'E: a.b: no', '{}', true)", key(1), occurred, claimed) {
		t.Error("the dispatch is not known any more")
	}
	// as long as that is not committed, it is the worker's
	d.wantRefused(t, operator, refusal{"in hand", fmt.Sprintf("select core.outbox_retry_now('%s')", key(1)), "SP034", "event_id", "is due already"})
	if err := worker.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	exec(t, operator, "select core.outbox_retry_now($1)", key(1))
	if !d.holds(t, 1, "o.available_at <= clock_timestamp() and o.attempts = 1") {
		t.Errorf("it is %v", d.row(t, 1))
	}
}
