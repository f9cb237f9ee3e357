package database_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"spectral/tests/pgtest"
)

// Whatever age a build has: nothing of a paused type is claimed, leased or seen, and all else is.
func TestPauseStopsEveryClaim(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 8, "")
	d.alter(t, 2, "crashes = 1")
	d.alter(t, 3, "available_at = clock_timestamp() + interval '1 h'")
	d.alter(t, 4, "event_type = $1", platformType)
	d.alter(t, 5, "generation = 3")
	worker := d.login(t, "spectral_worker")
	for _, c := range []struct {
		sql  string
		rows int // of the card in generation 1
	}{
		{"core.outbox_claim(1, 'worlds.world_model_card.published', 9, '-infinity', gen_random_uuid(), false)", 4},
		{"core.outbox_claim(1, 'worlds.world_model_card.published', 9, '-infinity', gen_random_uuid(), true)", 1},
		{"core.outbox_lease(1, 'worlds.world_model_card.published', 9)", 5},
		{"core.outbox_lease(1, 'worlds.world_model_card.published', 9, p_crashed => true)", 1},
		{"core.outbox_lease(1, 'worlds.world_model_card.published', 9, p_crashed => false)", 4},
		{"core.outbox_look(1, '{worlds.world_model_card.published}', '{-infinity}') where oldest_due is not null and next_in > 0 and crashed", 1},
	} {
		count := func(sql string) int {
			t.Helper()
			tx := begin(t, worker)
			n := value[int](t, tx, "select count(*) from "+sql)
			if err := tx.Rollback(deadline(t)); err != nil {
				t.Fatal(err)
			}
			return n
		}
		others := []string{strings.ReplaceAll(c.sql, "worlds.world_model_card.published", platformType), strings.Replace(c.sql, "(1,", "(3,", 1)}
		before := []int{count(others[0]), count(others[1])}
		if n := count(c.sql); n != c.rows {
			t.Errorf("%s: %d, want %d", c.sql, n, c.rows)
		}
		exec(t, operator, "select core.event_type_pause('worlds.world_model_card.published', 1)")
		if n := count(c.sql); n != 0 {
			t.Errorf("%s: %d of a paused type", c.sql, n)
		}
		if after := []int{count(others[0]), count(others[1])}; !slices.Equal(before, after) {
			t.Errorf("%s: of another type and another generation %v, want %v", c.sql, after, before)
		}
		exec(t, operator, "select core.event_type_resume('worlds.world_model_card.published', 1)")
		if n := count(c.sql); n != c.rows {
			t.Errorf("%s: %d after the pause, want %d", c.sql, n, c.rows)
		}
	}
}

// What is held is settled, what comes back waits, publishing goes on, and what a dead worker held is reaped.
func TestPauseStopsNothingElse(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 4, "")
	worker := d.login(t, "spectral_worker")
	leases := leaseRows(t, worker, "p_limit => 3")
	dying := d.login(t, "spectral_worker")
	id := value[string](t, dying, "select gen_random_uuid()::text")
	exec(t, dying, "select core.worker_register($1, 1, 'w', '{}')", id)
	exec(t, dying, "select core.claim_journal_write($1, 'worlds.world_model_card.published', 0, $2)", id, []string{key(4).String()})
	if err := dying.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	exec(t, operator, "select core.event_type_pause('worlds.world_model_card.published', 1, 'anna')")
	if n := len(values[string](t, worker, "select core.outbox_deliver_leased($1, $2, $3)::text", named(leases[:1])...)); n != 1 {
		t.Error("what is in flight cannot be delivered")
	}
	if n := len(values[string](t, worker, "select core.outbox_release($1, $2, $3)::text", named(leases[1:2])...)); n != 1 {
		t.Error("what is in flight cannot be released")
	}
	d.alter(t, 3, runOut)
	exec(t, worker, "select core.outbox_reap()")
	exec(t, d.login(t, "spectral_worlds"), `select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{}', p_generation => 1)`)
	waitFor(t, d.admin, "select not exists (select from core.live_workers)")
	exec(t, worker, "select core.workers_probe(gen_random_uuid(), 0)")
	if n := value[int](t, worker, "select count(*) from core.outbox_reap(p_grace => 0) where crashes = 1"); n != 1 {
		t.Errorf("%d rows that a dead worker held were reaped, want 1", n)
	}
	d.alter(t, 4, "available_at = clock_timestamp()")
	if n := value[int](t, d.admin, "select count(*) from core.outbox where status = 'pending'"); n != 4 {
		t.Errorf("%d are pending, want 4", n)
	}
	if n := len(leaseRows(t, worker, "p_limit => 9")); n != 0 {
		t.Errorf("%d of a paused type were leased", n)
	}
	exec(t, operator, "select core.event_type_resume('worlds.world_model_card.published', 1)")
	if n := len(leaseRows(t, worker, "p_limit => 9")); n != 4 {
		t.Errorf("%d were leased after the pause, want 4", n)
	}
}

func TestPauseAndResumeRefuse(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 1, "channel = 'outbox_gen_3_old', event_type = $1, generation = 3", classType)
	exec(t, operator, "select core.event_type_pause($1, 3, ' anna ', ' because ')", classType)
	if have := values[string](t, operator, "select concat_ws(' ', event_type, generation, paused_by, reason) from core.paused_types"); !slices.Equal(have, []string{classType + " 3 anna because"}) {
		t.Errorf("paused are %q", have)
	}
	d.wantRefused(t, operator,
		refusal{"twice", "select core.event_type_pause('" + classType + "', 3)", "SP034", "event_type", "by anna"},
		refusal{"unknown type", "select core.event_type_pause('a.b', 3)", "SP030", "event_type", "'a.b' is not registered"},
		refusal{"no type", "select core.event_type_pause(null, 3)", "SP030", "event_type", "not registered"},
		refusal{"unknown generation", "select core.event_type_pause('" + classType + "', 9)", "SP019", "generation", "not registered"},
		refusal{"retired generation", "select core.event_type_pause('" + classType + "', 2)", "SP019", "generation", "retired"},
		refusal{"no generation", "select core.event_type_pause('" + classType + "', null)", "SP019", "generation", "highest live one is 3"},
		refusal{"blank name", "select core.event_type_pause('" + classType + "', 4, ' ')", "SP030", "acted_by", "blank"},
		refusal{"blank reason", "select core.event_type_pause('" + classType + "', 4, 'a', ' ')", "SP030", "reason", "blank"},
		refusal{"resume what is not paused", "select core.event_type_resume('" + classType + "', 4)", "SP034", "event_type", "is not paused in generation 4"},
		refusal{"resume nothing", "select core.event_type_resume(null, null)", "SP034", "event_type", "not paused"},
		refusal{"resume blank", "select core.event_type_resume('" + classType + "', 3, '')", "SP030", "acted_by", "blank"},
	)
	// it wakes who listens for the type by its contract, and on whatever channel something waits
	b := d.listen(t, "outbox_gen_3_slow", "outbox_gen_3_old", "outbox_gen_3")
	exec(t, operator, "select core.event_type_resume($1, 3, 'bert')", classType)
	if have := b.await(t, 2); have["outbox_gen_3_slow"] != 1 || have["outbox_gen_3_old"] != 1 {
		t.Errorf("it rings %v", have)
	}
	if have := d.actions(t); !slices.Equal(have, []string{`pause anna 0 3 {"reason": "because", "event_type": "` + classType + `"}`, `resume bert 0 3 {"event_type": "` + classType + `"}`}) {
		t.Errorf("noted is %q", have)
	}
	if _, err := d.login(t, "spectral_worker").Exec(deadline(t), "select core.event_type_pause($1, 3)", classType); err == nil {
		t.Error("a worker may pause")
	}
}

// The floor does not rise past what waits for a pause to end.
func TestPauseHoldsTheFloor(t *testing.T) {
	t.Parallel()
	d, operator := setupOperator(t)
	d.rows(t, 3, "")
	exec(t, operator, "select core.event_type_pause('worlds.world_model_card.published', 1)")
	oldest := value[time.Time](t, d.admin, "select min(available_at) from core.outbox")
	if have := value[time.Time](t, pgtest.Conn(t, d.at), "select oldest from core.outbox_floor(1, 'worlds.world_model_card.published', '-infinity')"); !have.Equal(oldest) {
		t.Errorf("the floor may rise to %s, but an event of %s waits", have, oldest)
	}
}
