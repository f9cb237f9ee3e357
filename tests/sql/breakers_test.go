package sql_test

import (
	"testing"
)

const (
	opened  = "select core.breaker_open(1, 'platform.a', '{card}', 'E: no', 'w')"
	waiting = "select count(*) from core.outbox where waiting_for is not null and status = 'pending'"
	waitAll = "select count(*) from core.outbox_wait(1, 'platform.a', (select array_agg(id) from core.outbox), " +
		"(select array_agg(occurred_at) from core.outbox))"
)

// waits gives a database n pending events that wait for the open breaker of platform.a.
func waits(t *testing.T, n string) *database {
	t.Helper()
	d := setup(t)
	d.rows(t, map[string]int{"1": 1, "3": 3}[n], "")
	exec(t, d.admin, "create temp table kept as select id, occurred_at from core.outbox")
	d.run(t, line{"worker", opened, "t"}, line{"worker", opened, "f"}, line{"", waitAll, n}, line{"", waiting, n})
	return d
}

// A breaker closes after a probe of eight calls without a failure, or when nothing waits any more.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	d := waits(t, "3")
	exec(t, d.admin, "update core.breakers set next_probe_at = now()")
	probe, again := "select core.breaker_probe(1, 'platform.a', 60)", "update core.breakers set next_probe_at = now()"
	probed := func(calls, failed string) string {
		return "select core.breaker_probed(1, 'platform.a', " + calls + ", " + failed + ")"
	}
	d.run(t, line{"worker", probe, "1"}, line{"worker", probe, "-"}, // one worker at a time
		line{"worker", probed("1", "true"), "f"}, line{"worker", probe, "-"}, // not at once
		line{"", again, ""}, line{"worker", probe, "1"}, line{"worker", probed("1", "false"), "f"},
		line{"worker", probe, "2"}, line{"worker", probed("2", "false"), "f"}, line{"worker", probe, "4"},
		line{"worker", probed("3", "true"), "f"}, line{"", again, ""}, line{"worker", probe, "1"},
		line{"worker", probed("0", "false"), "f"}, // another session has locked what waits
		line{"", "select width, probes, closing from core.breakers", "1 7 f"},
		line{"", "update core.breakers set width = 8, next_probe_at = now()", ""}, line{"worker", probe, "8"},
		line{"worker", probed("8", "false"), "t"},
		line{"worker", "select core.breaker_release(1, 'platform.a', 2)", "2"}, line{"", waiting, "1"},
		line{"worker", opened, "t"}, // it may open again while it closes, from the beginning
		line{"", "select width, probes, failed_probes from core.breakers", "1 0 0"},
		line{"worker", "select core.breaker_release(1, 'platform.a', 2)", "0"}, line{"", waiting, "1"},
		line{"operator", "select core.outbox_retry_now(id) from core.outbox where waiting_for is not null",
			"SP032 event_id"},
		line{"operator", "select count(*) from core.outbox_retry_now_many(array(select id from core.outbox " +
			"where waiting_for is not null))", "0"},
		line{"operator", "select core.handler_close(1, 'platform.a') is null", "f"},
		line{"worker", "select core.breaker_release(1, 'platform.a', 2)", "1"},
		line{"worker", "select core.breaker_release(1, 'platform.a', 2)", "0"},
		line{"", "select count(*) from core.breakers", "0"},
		line{"", "select count(*) from core.outbox where available_at <= clock_timestamp()", "3"})
}

// What a probe retries or gives back does not wait for ever.
func TestProbedRowsAreDueAgain(t *testing.T) {
	t.Parallel()
	d := waits(t, "3")
	d.run(t, line{"worker", `select core.outbox_retry(c.event_id, c.occurred_at, c.available_at, 0, 'E: a: no', '{}',
			false) from core.outbox_claim(1, '{card}', 1, '-infinity', gen_random_uuid(), false,
			p_probe => 'platform.a') c`, "t"},
		line{"worker", `select count(*) from (select core.outbox_release(array[l.event_id], array[l.occurred_at],
			array[l.claim_token]) from core.outbox_lease(1, '{card}', 1, p_handlers => '{platform.a}',
			p_probe => 'platform.a') l) r`, "1"},
		line{"", "select count(*) from core.outbox where available_at <= clock_timestamp() and waiting_for is null", "2"},
		line{"", waiting, "1"})
}

// A row that cannot be written keeps no other waiting when a breaker closes.
func TestBreakerClosesBesideARowThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	d := waits(t, "3")
	exec(t, d.admin, `create function public.reject() returns trigger language plpgsql as $$
		begin raise exception 'audit rejects'; end $$;
		create trigger reject before update on core.outbox for each row when (old.id = '`+key(2).String()+`')
		execute function public.reject()`)
	d.run(t, line{"operator", "select core.handler_close(1, 'platform.a') is null", "f"},
		line{"worker", "select core.breaker_release(1, 'platform.a')", "3"}, line{"", waiting, "1"},
		line{"worker", "select core.breaker_release(1, 'platform.a')", "0"},
		line{"", "select count(*) from core.breakers", "0"},
		line{"", "select id::text, reason ~ 'audit rejects' from core.quarantined_events", "{2} t"})
}

// A worker that dies while it probes an event leaves a crash and an attempt; the event is probed again all the same.
func TestACrashInAProbeIsCounted(t *testing.T) {
	t.Parallel()
	d := waits(t, "1")
	exec(t, d.admin, "insert into core.workers (worker_id, session_id, generation, name, handlers, gone_at) "+
		"values ($1, gen_random_uuid(), 1, 'killed', '{}', now() - interval '1 hour')", worker1)
	exec(t, d.admin, "insert into core.claim_journal (worker_id, event_type, runner, ids, handlers) "+
		"select $1, '"+cardType+"', 1, array_agg(id), '{platform.a}' from core.outbox", worker1)
	reapAll(t, d.login(t, "spectral_worker"), 10)
	d.run(t, line{"", "select crashes, waiting_for, available_at < now() + interval '1 minute' from core.outbox", "1 - t"},
		line{"", "select handler_name, error_class from core.failed_attempts", "platform.a WorkerDied"},
		line{"", waitAll, "1"},
		line{"worker", `select count(*) from core.outbox_claim(1, '{card}', 1, '-infinity', gen_random_uuid(), false,
			p_probe => 'platform.a')`, "1"})
	// what waits since after it was claimed has not ended the worker
	exec(t, d.admin, "update core.outbox set crashes = 0")
	exec(t, d.admin, "insert into core.workers (worker_id, session_id, generation, name, handlers, gone_at) "+
		"values ($1, gen_random_uuid(), 1, 'killed', '{}', now() - interval '1 hour')", worker2)
	exec(t, d.admin, "insert into core.claim_journal (worker_id, event_type, runner, ids, claimed_at) "+
		"select $1, '"+cardType+"', 1, array_agg(id), now() - interval '1 minute' from core.outbox", worker2)
	reapAll(t, d.login(t, "spectral_worker"), 10)
	d.run(t, line{"", "select crashes from core.outbox", "0"}, line{"", waiting, "1"})
}
