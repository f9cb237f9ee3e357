package sql_test

import (
	"fmt"
	"strings"
	"testing"
)

// Workers register one after the other, so that the second sees the first.
func TestWorkersRegisterOneAfterTheOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const register = `select core.worker_register(gen_random_uuid(), 1, '%s', '{"worlds.x": ["a.%[1]s"]}')`
	d.run(t, line{"worker", "begin; " + fmt.Sprintf(register, "first"), ""})
	second := d.later(t, "worker 2", fmt.Sprintf(register, "second"))
	d.run(t, line{"worker", "commit", ""})
	if have := second(); !strings.Contains(have, "worker first is live and handles worlds.x") {
		t.Errorf("the second is answered with %q", have)
	}
}

// A failure that is recorded in its own transaction waits for the lost one to release the row, and is recorded once.
func TestAFailureIsRecordedOnceForItsAttempt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, call := range []string{"select core.outbox_fail('{1}', '2026-01-01', '2026-01-02', 'C: h: m', '{}')",
		"select core.outbox_retry('{1}', '2026-01-01', '2026-01-02', 0, 'C: h: m', '{}', true)"} {
		d.rows(t, 1, "occurred_at = '2026-01-01', available_at = '2026-01-02'")
		d.run(t, line{"superuser", "begin; select from core.outbox for update", ""})
		answer := d.later(t, "worker", call)
		d.run(t, line{"superuser", "rollback", ""})
		if have := answer(); have != "t" {
			t.Errorf("%s: %s", call, have)
		}
		d.run(t, line{"worker", call, "f"}, line{"", "select attempts from core.outbox", "1"})
	}
}

// A batch settles the rows that it claimed. It neither settles nor waits for another with the id of one of them.
func TestDeliverySettlesOnlyWhatWasClaimed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 3, "occurred_at = ('2026-01-0' || (payload ->> 'n'))::timestamptz, "+
		"id = case payload ->> 'n' when '2' then '"+key(1).String()+"' else id end")
	d.run(t, line{"superuser", "begin; select from core.outbox where occurred_at = '2026-01-02' for update", ""},
		line{"worker", "set lock_timeout = '100ms'; " +
			"select core.outbox_deliver('{{1},{3}}', '{2026-01-01,2026-01-03}')", "2"},
		line{"superuser", "rollback", ""},
		line{"", "select string_agg(status || ' ' || attempts, ', ' order by occurred_at) from core.outbox",
			"delivered 1, pending 0, delivered 1"})
}

// One call gives up all rows that cannot be written, up to so many others, and leaves those as they were.
func TestIsolateGivesUpAllRowsThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	d := setup(t)
	// rows 1, 6 and 7 are good
	d.rows(t, 7, "attempts = (payload ->> 'n')::integer, trace_context = "+
		"(array['rejected', 'rejected: delivered', 'conflicting', 'sometimes'])[(payload ->> 'n')::integer - 1]")
	exec(t, d.admin, `create sequence public.writes;
		create function public.meddle() returns trigger language plpgsql security definer as $$ begin
			if old.trace_context = 'conflicting' or old.trace_context = 'sometimes' and nextval('public.writes') % 3 <> 0 then
				raise 'too busy' using errcode = '40001';
			elsif old.trace_context in ('rejected', 'rejected: ' || new.status) then
				raise 'no';
			end if;
			return new;
		end $$;
		create trigger meddle before update on core.outbox for each row execute function public.meddle()`)
	before, _ := d.ask(t, "", "select md5(string_agg(o::text, ',' order by id)) from core.outbox o")
	for _, c := range []struct {
		step  string
		limit int
		again bool
		want  string
	}{
		{"claim", 50, true, "none"},
		{"lease", 50, false, "{2} 2 quarantined P0001: no"},
		{"lease", 50, true, "{2} 2 quarantined P0001: no; {4} 4 quarantined 40001: too busy"},
		{"settle", 1, true, "none"},
		{"settle", 50, false, "{2} 2 quarantined P0001: no"}, // row 3 can be failed, once it has been handled
		{"settle", 50, true, "{2} 2 quarantined P0001: no; {4} 4 quarantined 40001: too busy"},
	} {
		exec(t, d.admin, "delete from core.quarantined_events")
		d.run(t, line{"worker", fmt.Sprintf("select coalesce(string_agg(format('%%s %%s %%s %%s', event_id, "+
			"attempts, outcome, reason), '; '), 'none') "+
			"from core.outbox_isolate(1, '{card}', %d, '-infinity', false, '%s', %t)", c.limit, c.step, c.again), c.want})
	}
	d.run(t, line{"", "select md5(string_agg(o::text, ',' order by id)) from core.outbox o", before})
}

// A sample's id is above every transaction id given out before its time, including those that no snapshot has yet.
func TestAWatermarkSampleIsAboveEveryEarlierTransaction(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t, line{"superuser", "begin; select pg_current_xact_id()", ""},
		line{"superuser 2", "begin; " + publishInto(1), ""})
	stamped, _ := d.ask(t, "superuser 2", "select available_at from core.outbox")
	lowest, _ := d.ask(t, "superuser", "select pg_current_xact_id()")
	highest, _ := d.ask(t, "superuser 2", "select pg_current_xact_id()")
	d.run(t, line{"worker", fmt.Sprintf("begin; select sampled_at >= '%s', sample_id > %s, lowest_running <= %s from "+
		"core.outbox_watermark(1, '{card}', '-infinity')", stamped, highest, lowest), "t t t"},
		line{"worker", "select core.outbox_watermark(1, '{card}', '-infinity')", "55000"})
}

// The poll sees what is published while the barrier waits, after the statement has begun.
func TestThePollSeesWhatWasPublishedBeforeTheBarrier(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.waitsBefore(t, "core.outbox_barrier", "  begin\n    if pg_try_advisory_xact_lock")
	d.run(t, line{"superuser", "select pg_advisory_lock(7)", ""})
	polled := d.later(t, "worker", "select passed, oldest_due is not null from "+
		"core.outbox_barrier_poll('{outbox_gen_1}', 1, '{{card}}', '{-infinity}')")
	d.run(t, line{"worlds", publishInto(1), ""}, line{"superuser", "select pg_advisory_unlock(7)", "t"})
	if answer := polled(); answer != "t t" {
		t.Errorf("the poll answers %s", answer)
	}
}

// Events of the last minute or so are measured: how long from due to settled, and those still waiting count as waiting.
func TestDeliveryLatencyIsSampled(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3)")
	insert := func(n int, status, times, further string) {
		t.Helper()
		exec(t, d.admin, `
			insert into core.outbox (id, event_type, event_version, source, content_class, channel, generation, payload,
				idempotency_key,
				status, attempts, available_at, delivered_at, first_failed_at, claimed_at)
			select core.uuid_v7(), 'worlds.world_model_card.published', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}',
				gen_random_uuid()::text,
				'`+status+`', 1, `+times+`, null, null from generate_series(1, $1)`, n)
		exec(t, d.admin, `update core.outbox set `+further+` id = overlay(id::text placing
			left(core.uuid_v7_floor(clock_timestamp() - interval '40 seconds')::text, 13) from 1 for 13)::uuid
			where id >= core.uuid_v7_floor(clock_timestamp() - interval '10 seconds')`)
	}
	ago := func(due, settled string) string {
		return "statement_timestamp() - interval '40 seconds' + interval '" + due + // one time for both
			"', statement_timestamp() - interval '40 seconds' + interval '" + settled + "'"
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
	exec(t, d.admin, "select core.event_type_pause('worlds.thing.slow', 1), "+
		"core.event_type_pause('worlds.world_model_card.published', 3)")

	const later = "update core.delivery_latencies set measured_at = measured_at - interval '1 minute'"
	d.run(t, line{"worker", "set role spectral_worker; select core.latency_sample()", "100"},
		line{"", "select up_to_ms, events from core.delivery_latencies order by up_to_ms", "10 98; 500 1; 60000 1"},
		line{"", "select events, p50_ms, p99_ms from core.delivery_latency_hours", "100 10 500"},
		line{"worker", "select core.latency_sample()", "-"}, // within the minute
		line{"", later, ""},
		// up to five of the ten are of those that do not count
		line{"worker", "select n between 5 and 10 from core.latency_sample(10) n", "t"},
		line{"", later + ", hour = hour - interval '9 days'", ""}, line{"worker", "select core.latency_sample(1)", ""},
		line{"", "select count(*) from core.delivery_latencies where hour < clock_timestamp() - interval '2 hours'", "0"})
}

// Of two workers that sample at once one does.
func TestOneWorkerSamplesLatencyAtATime(t *testing.T) {
	t.Parallel()
	setup(t).run(t, line{"worker", "begin; set local role spectral_worker; select core.latency_sample()", "0"},
		line{"worker 2", "set role spectral_worker; select core.latency_sample()", "-"})
}
