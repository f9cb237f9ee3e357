-- A system with two generations, events in every state, errors, an open breaker and half an hour of statistics.
insert into core.deployments (generation, status, registered_at) values
  (7, 'draining', clock_timestamp() - interval '9 days'), (8, 'live', clock_timestamp() - interval '20 minutes');
insert into core.error_groups (group_id, handler_name, error_class, message, first_generation, first_seen) values
  ('3fa9c15b2e7d', 'platform.mailer', 'TimeoutError', 'dial tcp * : i/o timeout', 8, clock_timestamp() - interval '12 minutes'),
  ('91ab04c2d7e6', 'worlds.indexer', 'IntegrityError', 'no such card *', 7, clock_timestamp() - interval '3 days');
insert into core.handlers (generation, handler_name, event_type, effect, on_replay)
select 7, 'worlds.indexer', 'worlds.world_model_card.published', null, 'allow';
insert into core.outbox (id, event_type, event_version, source, target, workspace_id, content_class, channel, generation,
  payload, idempotency_key, occurred_at, created_at, available_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, case when i % 3 = 0 then 'decision.recorded'
    else 'worlds.world_model_card.published' end, 1, case when i % 3 = 0 then 'platform' else 'worlds' end,
  case when i % 4 = 0 then 'worlds' end, case when i % 2 = 0 then '0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10'::uuid end,
  'operational', case when i > 55 then 'outbox_gen_7' else 'outbox_gen_8' end, case when i > 55 then 7 else 8 end,
  format('{"n": %s, "big": 9007199254740993, "small": 0.1000000000000000055511151231257827, "name": "<b>card</b>"}',
    i)::jsonb, 'k/' || i, t, t, t
from generate_series(1, 60) i, lateral (select clock_timestamp() - interval '10 minutes' + i * interval '9 seconds' as t) x;
update core.outbox set status = 'delivered', delivered_at = created_at + interval '20 milliseconds'
where id <= '00000000-0000-7000-8000-000000000014';
update core.outbox o set status = 'failed', attempts = 6, claimed_at = created_at + interval '80 seconds',
  first_failed_at = created_at + interval '1 second', crashes = 1,
  last_error = case when id > '00000000-0000-7000-8000-00000000001c' then 'IntegrityError: worlds.indexer: no such card "'
    || id || E'"\nSQLSTATE 23503' else 'TimeoutError: platform.mailer: dial tcp 10.0.0.1:25: i/o timeout' end,
  handler_failures = case when id > '00000000-0000-7000-8000-00000000001c'
    then '{"worlds.indexer": {"failures": 6, "parked": true, "class": "IntegrityError", "error": "no such card", "group":
      "91ab04c2d7e6"}}' else '{"platform.mailer": {"failures": 6, "parked": true, "class": "TimeoutError", "error":
      "i/o timeout", "group": "3fa9c15b2e7d"}}' end::jsonb
where id between '00000000-0000-7000-8000-000000000015' and '00000000-0000-7000-8000-000000000022';
update core.outbox set attempts = 2, first_failed_at = created_at, available_at = clock_timestamp() + interval '1 hour',
  last_error = 'TimeoutError: platform.mailer: i/o timeout', handler_failures =
    '{"platform.mailer": {"failures": 2, "class": "TimeoutError", "error": "i/o timeout", "group": "3fa9c15b2e7d"}}'
where id between '00000000-0000-7000-8000-000000000023' and '00000000-0000-7000-8000-000000000026';
update core.outbox set cause_id = '00000000-0000-7000-8000-000000000015'
where id in ('00000000-0000-7000-8000-000000000016', '00000000-0000-7000-8000-000000000002');
insert into core.failed_attempts (event_id, occurred_at, handler_name, attempt, cycle, started_at, duration_ms, worker,
  error_class, error, stack, trace_id, group_id)
select o.id, o.occurred_at, h.key, a, 0, o.created_at + (a * a * 2 || ' seconds')::interval, 1500 * a, 'host-1/4711',
  h.value ->> 'class', h.value ->> 'error', E'goroutine 1 [running]:\nmain.main()', '4bf92f3577b34da6a3ce929d0e0e4736',
  h.value ->> 'group'
from core.outbox o, jsonb_each(o.handler_failures) h, generate_series(1, 6) a where o.status = 'failed';
insert into core.breakers (generation, handler_name, event_type, opened_at, opened_by, cause) values
  (8, 'platform.mailer', 'worlds.world_model_card.published', clock_timestamp() - interval '12 minutes', 'host-1/4711',
    'TimeoutError: dial tcp 10.0.0.1:25: i/o timeout');
insert into core.paused_types (generation, event_type, paused_by, reason) values
  (7, 'worlds.world_model_card.published', 'anna', 'bad deploy');
insert into core.event_stats (hourly, at, generation, event_type, handler_name, published, handled, retried, failed, pickup,
  handling)
select false, date_trunc('minute', clock_timestamp(), 'UTC') - m * interval '1 minute', 8, t.event_type, t.handler,
  case when t.handler = '' then (90 + 60 * sin(m / 4.0 + t.n))::int else 0 end, (85 + 50 * sin(m / 4.0 + t.n))::int,
  case when t.handler = 'platform.mailer' then 9 else 0 end, case when t.handler = 'platform.mailer' then 1 else 0 end,
  array_fill(0::bigint, array[3]) || array[40, 20, 5]::bigint[] || array_fill(0::bigint, array[$$buckets$$ - 6]),
  array_fill(0::bigint, array[4]) || array[30, 30, 2]::bigint[] || array_fill(0::bigint, array[$$buckets$$ - 7])
from generate_series(1, 29) m, (values (1, 'worlds.world_model_card.published', ''), (1, 'worlds.world_model_card.published',
    'worlds.indexer'), (1, 'worlds.world_model_card.published', 'platform.mailer'), (2, 'decision.recorded', ''),
  (2, 'decision.recorded', 'worlds.rule_health_recorder')) t(n, event_type, handler);
