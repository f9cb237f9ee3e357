package sql_test

import "testing"

// publishedMinutesAgo makes n rows of a type in each of the last two whole minutes, so that it does not matter whether
// a minute ends during the test.
const publishedMinutesAgo = `insert into core.outbox (id, event_type, event_version, source, content_class, channel,
		generation, payload, idempotency_key, status)
	select overlay(core.uuid_v7()::text placing left(core.uuid_v7_floor(
			date_trunc('minute', clock_timestamp(), 'UTC') - minutes * interval '1 minute' + interval '1 s')::text, 13)
			from 1 for 13)::uuid, $1 || case when $3 then n::text else '' end, 1, 'worlds', 'operational', 'outbox_gen_1', 1,
		'{}', gen_random_uuid()::text, 'pending'
	from generate_series(1, $2) as n, generate_series(1, 2) as minutes`

func TestEventStats(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, publishedMinutesAgo, cardType, 3, false)
	exec(t, d.admin, `insert into core.event_stats
		select hourly, clock_timestamp() - age, 1, 'old', '', 0, 0, 0, 0, '{}', '{}' from (values
			(false, interval '23 hours'), (false, interval '25 hours'), (true, interval '7 days'), (true, interval '9 days'))
			as s(hourly, age)`)
	const add = `set role spectral_worker; select core.event_stats_add(1, '[
		{"event_type": "{card}", "handled": 2, "retried": 1, "failed": 1, "pickup": [1, 2]},
		{"event_type": "{card}", "handler_name": "platform.a", "handled": 2, "failed": 5, "handling": [0, 4]}]', 90)`
	const sums = `select hourly, handler_name, sum(published), sum(handled), sum(retried), sum(failed), sum(pickup[2]),
		sum(handling[2]) from core.event_stats where event_type = '{card}' group by 1, 2 order by 1, 2`
	d.run(t, line{"worker", add, ""}, line{"", sums, "f  3 2 1 1 2 -; f platform.a 0 2 0 5 - 4; t  3 2 1 1 2 -; " +
		"t platform.a 0 2 0 5 - 4"},
		line{"", "select extract(epoch from clock_timestamp() - at) between 90 and 600 from core.event_stats where " +
			"handler_name = 'platform.a' and not hourly", "t"},
		// what was published is counted once
		line{"worker 2", add, ""}, line{"", "select sum(handled), sum(pickup[2]), sum(published) in (3, 6) from " +
			"core.event_stats where event_type = '{card}' and not hourly and handler_name = ''", "4 4 t"},
		line{"", "select count(*) filter (where hourly), count(*) from core.event_stats where event_type = 'old'", "1 2"},
		line{"worker", "select core.event_stats_add(1, (select jsonb_agg('{}'::jsonb) from generate_series(1, 2001)), 0)",
			"22023"})
	// types beyond the first 200 that are registered have no separate rows, nor have those that are not
	exec(t, d.admin, "truncate core.event_stats, core.outbox")
	exec(t, d.admin, publishedMinutesAgo, "worlds.many", 205, true)
	d.run(t, line{"worker", "select core.event_stats_add(1, '[]', 0)", ""},
		line{"", "select string_agg(distinct event_type, ' '), sum(published) in (205, 410) from core.event_stats where " +
			"hourly", "other t"})
}

func TestMetricsOfTheDatabase(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 6, "")
	d.alter(t, 1, "available_at = clock_timestamp() + interval '1 hour'")
	d.alter(t, 2, "status = 'in_flight', claim_token = id, claimed_at = clock_timestamp() - interval '10 minutes', "+
		"lease_seconds = 300")
	d.alter(t, 3, "status = 'failed', claimed_at = clock_timestamp() - interval '44 days', occurred_at = "+
		"clock_timestamp() - interval '44 days'")
	d.alter(t, 4, "status = 'delivered', delivered_at = clock_timestamp() - interval '47 days', occurred_at = "+
		"clock_timestamp() - interval '47 days', id = core.uuid_v7_floor(clock_timestamp() - interval '47 days')")
	d.alter(t, 5, "available_at = clock_timestamp() - interval '1 minute'")
	const backlog = "set role spectral_worker; select status, generation, value from core.metrics(now()) where metric = " +
		"'spectral.backlog' and event_type = '{card}' order by 1"
	d.run(t, line{"worker", backlog, "due 1 2; failed - 1; in_flight 1 1; scheduled 1 1"},
		line{"operator", "select core.event_type_pause('{card}', 1)", ""},
		line{"worker", backlog, "failed - 1; in_flight 1 1; paused 1 2; scheduled 1 1"},
		line{"operator", "select core.event_type_resume('{card}', 1)", ""},
		line{"worker", "select status, floor(value / 60) from core.metrics(now()) where metric = 'spectral.backlog.age' " +
			"order by 1", "due 1; failed 63360; in_flight 10"},
		line{"worker", `select metric, value from core.metrics(now()) where event_type is null and metric not in
			('spectral.outbox.rows', 'spectral.outbox.partitions', 'spectral.snapshot.transactions') order by 1`,
			"spectral.breakers.open 0; spectral.events.expiring 1; spectral.events.quarantined 0; spectral.events.replayed 0; " +
				"spectral.leases.overdue 1; spectral.notification_queue.usage 0; spectral.rows.overdue 1"},
		// a lock makes them fail, so that they do not keep the connection
		line{"superuser", "begin; lock table core.operator_actions, core.event_stats", ""},
		line{"worker", "select count(*) from core.metrics(now())", "55P03"},
		line{"worker", "select core.event_stats_add(1, '[]', 0)", "55P03"},
		line{"superuser", "rollback", ""},
		line{"operator", "select core.outbox_replay('{3}', 1, 'me') is null", "f"},
		line{"worker", "select value from core.metrics(now() - interval '1 minute') where metric = " +
			"'spectral.events.replayed'", "1"})
}
