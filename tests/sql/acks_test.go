package sql_test

import (
	"testing"
)

// Events of the last minute or so are measured: how long from due to settled, and those still waiting count as waiting.
func TestAcksAreMeasured(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3)")
	insert := func(n int, status, times, further string) {
		t.Helper()
		exec(t, d.admin, `
			insert into core.outbox (id, event_type, event_version, source, content_class, channel, generation, payload, idempotency_key,
				status, attempts, available_at, delivered_at, first_failed_at, claimed_at)
			select core.uuid_v7(), 'worlds.world_model_card.published', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', gen_random_uuid()::text,
				'`+status+`', 1, `+times+`, null, null from generate_series(1, $1)`, n)
		exec(t, d.admin, `update core.outbox set `+further+` id = overlay(id::text placing left(core.uuid_v7_floor(clock_timestamp() - interval '40 seconds')::text, 13) from 1 for 13)::uuid
			where id >= core.uuid_v7_floor(clock_timestamp() - interval '10 seconds')`)
	}
	ago := func(due, settled string) string {
		return "clock_timestamp() - interval '40 seconds' + interval '" + due + "', clock_timestamp() - interval '40 seconds' + interval '" + settled + "'"
	}
	insert(98, "delivered", ago("0", "8 milliseconds"), "")
	insert(1, "delivered", ago("0", "400 milliseconds"), "")
	insert(1, "pending", "clock_timestamp() - interval '40 seconds', null", "")
	// none of these counts
	insert(1, "delivered", ago("0", "9 seconds"), "first_failed_at = clock_timestamp(),")
	insert(1, "delivered", ago("0", "9 seconds"), "claimed_at = clock_timestamp(),")
	insert(1, "delivered", ago("0", "9 seconds"), "channel = 'outbox_gen_1_slow',")
	insert(1, "delivered", ago("0", "9 seconds"), "attempts = 0,")
	insert(1, "pending", "clock_timestamp() + interval '1 hour', null", "")
	insert(1, "pending", "clock_timestamp() - interval '40 seconds', null", "event_type = 'worlds.thing.slow',")
	exec(t, d.admin, "select core.event_type_pause('worlds.thing.slow', 1), core.event_type_pause('worlds.world_model_card.published', 3)")

	if measured := value[int](t, d.admin, "select core.ack_measure()"); measured != 100 {
		t.Errorf("%d events were measured, not the 100", measured)
	}
	have := values[string](t, d.admin, "select up_to_ms || ' ' || events from core.ack_latencies order by up_to_ms")
	if want := []string{"10 98", "500 1", "60000 1"}; len(have) != 3 || have[0] != want[0] || have[1] != want[1] || have[2] != want[2] {
		t.Errorf("the histogram is %q, not %q", have, want)
	}
	if p := value[string](t, d.admin, "select concat_ws(' ', events, p50_ms, p99_ms) from core.ack_latency_hours"); p != "100 10 500" {
		t.Errorf("events and percentiles are %q", p)
	}
	if again := value[*int](t, d.admin, "select core.ack_measure()"); again != nil {
		t.Errorf("measured again within the minute: %d", *again)
	}
	exec(t, d.admin, "update core.ack_latencies set measured_at = measured_at - interval '1 minute'")
	// up to five of the ten are of those that do not count
	if sampled := value[int](t, d.admin, "select core.ack_measure(10)"); sampled < 5 || sampled > 10 {
		t.Errorf("%d events in a sample of 10", sampled)
	}
	exec(t, d.admin, "update core.ack_latencies set measured_at = measured_at - interval '1 minute', hour = hour - interval '9 days'")
	exec(t, d.admin, "select core.ack_measure(1)")
	if old := value[int](t, d.admin, "select count(*) from core.ack_latencies where hour < clock_timestamp() - interval '2 hours'"); old != 0 {
		t.Errorf("%d rows are kept for more than 8 days", old)
	}
}

// Of two workers that measure at once one does.
func TestOneMeasuresAcksAtATime(t *testing.T) {
	t.Parallel()
	d := setup(t)
	other := d.login(t, "spectral_worker")
	exec(t, other, "begin")
	exec(t, other, "set local role spectral_worker")
	if first := value[*int](t, other, "select core.ack_measure()"); first == nil || *first != 0 {
		t.Fatalf("the first measured %v", first)
	}
	if second := value[*int](t, d.admin, "select core.ack_measure()"); second != nil {
		t.Errorf("the second measured %d beside it", *second)
	}
	exec(t, other, "rollback")
}
