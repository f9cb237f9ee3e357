-- Delivery latency by the hour, statistics of events, and what metrics say about the database.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- How long events wait for their handlers, by the hour: figures that say when to move on (docs/decisions/0018).
create table core.delivery_latencies (
  hour timestamptz not null,
  up_to_ms integer not null,
  events bigint not null,
  measured_at timestamptz not null,
  constraint delivery_latencies_pk primary key (hour, up_to_ms),
  constraint delivery_latencies_events_positive check (events > 0)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.delivery_latencies is 'Histogram of the time from due to settled, sampled; kept for 8 days';
comment on column core.delivery_latencies.up_to_ms is 'the bucket''s events took at most as many milliseconds';
grant select on core.delivery_latencies to spectral_operator;

create view core.delivery_latency_hours as
  select l.hour, sum(l.events)::bigint as events,
    (select min(u.up_to_ms) from core.delivery_latencies u
     where u.hour = l.hour and (select sum(b.events) from core.delivery_latencies b where b.hour = l.hour
       and b.up_to_ms <= u.up_to_ms) * 2 >= sum(l.events)) as p50_ms,
    (select min(u.up_to_ms) from core.delivery_latencies u
     where u.hour = l.hour and (select sum(b.events) from core.delivery_latencies b where b.hour = l.hour
       and b.up_to_ms <= u.up_to_ms) * 100 >= sum(l.events) * 99) as p99_ms
  from core.delivery_latencies l group by l.hour;
comment on view core.delivery_latency_hours is 'Percentiles of core.delivery_latencies: upper bounds of their buckets';
grant select on core.delivery_latency_hours to spectral_operator;

-- +goose StatementBegin
create function core.latency_sample(p_sample integer default 1000) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_from constant uuid := core.uuid_v7_floor(v_now - interval '70 seconds');
  v_to constant uuid := core.uuid_v7_floor(v_now - interval '10 seconds');
  v_start constant uuid := core.uuid_v7_floor(v_now - interval '70 seconds' + random() * interval '60 seconds');
  v_bounds constant integer[] := array[5, 10, 20, 35, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2000, 5000,
    10000, 30000, 60000, 2147483647];
  v_measured integer;
begin
  if p_sample is null or p_sample not between 1 and 100000 then
    raise exception 'p_sample %: must be from 1 to 100000', p_sample using errcode = 'invalid_parameter_value';
  end if;
  if not pg_try_advisory_xact_lock(6650971338417249007) then return null; end if;
  if exists (select from core.delivery_latencies l where l.measured_at > v_now - interval '50 seconds') then
    return null;
  end if;
  with later as
    (select o.* from core.outbox o where o.id >= v_start and o.id < v_to order by o.id limit p_sample),
  earlier as
    (select o.* from core.outbox o where o.id >= v_from and o.id < v_start
     order by o.id limit p_sample - (select count(*) from later)),
  waits as
    (select extract(epoch from case s.status when 'delivered' then s.delivered_at else v_now end
      - s.available_at) * 1000 as ms
     from (table later union all table earlier) s
     where s.first_failed_at is null and s.claimed_at is null and s.channel = 'outbox_gen_' || s.generation
       and (s.status = 'delivered' and s.attempts > 0 or s.status in ('pending', 'relayed')
          and s.available_at <= v_now
          and (s.generation, s.event_type) not in (select p.generation, p.event_type from core.paused_types p))),
  added as
    (insert into core.delivery_latencies as l (hour, up_to_ms, events, measured_at)
     select date_trunc('hour', v_now, 'UTC'), v_bounds[width_bucket(greatest(w.ms, 0), v_bounds::numeric[]) + 1],
       count(*), v_now
     from waits w group by 2 order by 2
     on conflict (hour, up_to_ms) do update set events = l.events + excluded.events, measured_at = excluded.measured_at)
  select count(*) into v_measured from waits;
  delete from core.delivery_latencies l where l.hour < v_now - interval '8 days';
  return v_measured;
end
$$;
-- +goose StatementEnd
grant execute on function core.latency_sample to spectral_worker;

-- What workers counted, by the minute for 24 hours and by the hour for 8 days, for `workers events stats --since`.
create table core.event_stats (
  hourly boolean not null,
  at timestamptz not null,
  generation bigint not null,
  event_type text not null,
  handler_name text not null,
  published bigint not null,
  handled bigint not null,
  retried bigint not null,
  failed bigint not null,
  pickup bigint[] not null,
  handling bigint[] not null,
  constraint event_stats_pk primary key (hourly, at, generation, event_type, handler_name)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.1);
comment on table core.event_stats is 'Events by minute and hour, generation, type and handler (core.event_stats_add)';
comment on column core.event_stats.hourly is 'the row is of an hour, otherwise of a minute';
comment on column core.event_stats.handler_name is 'empty: the row is of the type, with its publications and pickups';
comment on column core.event_stats.pickup is 'histogram of the time from due to claimed';
comment on column core.event_stats.handling is 'histogram of the time of a call of the handler';
grant select on core.event_stats to spectral_operator;

-- +goose StatementBegin
create function core.event_stats_add(p_generation bigint, p_lines jsonb, p_seconds_ago double precision) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set lock_timeout = '1s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_minute constant timestamptz := date_trunc('minute', v_now - make_interval(secs => p_seconds_ago), 'UTC');
  v_published constant timestamptz := date_trunc('minute', v_now - interval '2 minutes', 'UTC');
  v_first constant boolean := pg_try_advisory_xact_lock(2210947735580192641);
  v_from constant timestamptz := greatest(v_published - interval '9 minutes', (select max(s.at) + interval '1 minute'
    from core.event_stats s where not s.hourly and s.published > 0));
  v_types constant text[] := array(select distinct t.event_type from core.event_types t order by 1 limit 200);
begin
  if jsonb_array_length(p_lines) > 2000 then
    raise exception 'p_lines: % lines, 2000 are the most', jsonb_array_length(p_lines)
      using errcode = 'invalid_parameter_value';
  end if;
  insert into core.event_stats as s
    (hourly, at, generation, event_type, handler_name, published, handled, retried, failed, pickup, handling)
  select h.hourly, case when h.hourly then date_trunc('hour', l.at, 'UTC') else l.at end, l.generation, l.event_type,
    l.handler_name, sum(l.published), sum(l.handled), sum(l.retried), sum(l.failed),
    coalesce(max(l.pickup), '{}'), coalesce(max(l.handling), '{}')
  from (values (false), (true)) as h(hourly) cross join (
    select v_minute as at, p_generation as generation, left(w.event_type, 256) as event_type,
      coalesce(left(w.handler_name, 256), '') as handler_name, 0 as published, coalesce(w.handled, 0) as handled,
      coalesce(w.retried, 0) as retried, coalesce(w.failed, 0) as failed, w.pickup, w.handling
    from jsonb_to_recordset(p_lines) as w(event_type text, handler_name text, handled bigint, retried bigint,
      failed bigint, pickup bigint[], handling bigint[]) where w.event_type is not null
    union all
    select m.at, o.generation, case when o.event_type = any (v_types) then o.event_type else 'other' end, '', o.count,
      0, 0, 0, null, null
    from generate_series(v_from, v_published, interval '1 minute') as m(at) cross join lateral (
      select o.generation, o.event_type, count(*) from core.outbox o where v_first
        and o.id >= core.uuid_v7_floor(m.at) and o.id < core.uuid_v7_floor(m.at + interval '1 minute')
      group by o.generation, o.event_type) o) as l
  group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5 -- one order of locks
  on conflict (hourly, at, generation, event_type, handler_name) do update set
    published = s.published + excluded.published, handled = s.handled + excluded.handled,
    retried = s.retried + excluded.retried, failed = s.failed + excluded.failed,
    pickup = array(select coalesce(u.a, 0) + coalesce(u.b, 0)
      from unnest(s.pickup, excluded.pickup) with ordinality as u(a, b, place) order by u.place),
    handling = array(select coalesce(u.a, 0) + coalesce(u.b, 0)
      from unnest(s.handling, excluded.handling) with ordinality as u(a, b, place) order by u.place);
  if v_first then
    delete from core.event_stats s where not s.hourly and s.at < v_now - interval '24 hours';
    delete from core.event_stats s where s.hourly and s.at < v_now - interval '8 days';
  end if;
end
$$;
-- +goose StatementEnd
grant execute on function core.event_stats_add to spectral_worker;

-- +goose StatementBegin
create function core.metrics(p_since timestamptz)
returns table (metric text, event_type text, generation bigint, status text, value double precision)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set lock_timeout = '1s' as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := clock_timestamp();
  v_window record;
  v_types constant integer := (select count(*) from core.pending_types());
  v_muted constant text[] := array(select g.group_id from core.error_groups g where g.muted_until > v_now);
  v_most constant integer := greatest(20000 / greatest(2 * v_types, 2), 10);
begin
  return query
    with counted as materialized (
      select t.event_type, t.generation, s.status, s.count, s.oldest
      from core.pending_types() t cross join lateral (
        select case when exists (select from core.paused_types p where p.event_type = t.event_type
          and p.generation = t.generation) then 'paused' else 'due' end as status,
          count(*) as count, min(d.available_at) as oldest from (
          select o.available_at from core.outbox o
          where o.generation = t.generation and o.event_type = t.event_type and o.status = 'pending'
            and o.deleted_at is null and o.available_at <= v_now order by o.available_at limit v_most) d
        union all
        select 'scheduled', count(*), null from (
          select from core.outbox o
          where o.generation = t.generation and o.event_type = t.event_type and o.status = 'pending'
            and o.deleted_at is null and o.available_at > v_now order by o.available_at limit v_most) d) s
      union all
      select f.event_type, f.generation, 'in_flight', count(*), min(f.claimed_at) from (
        select o.event_type, o.generation, o.claimed_at from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null order by o.id limit 2000) f
      group by f.event_type, f.generation
      union all
      select t.event_type, t.generation, 'relayed', f.count, f.oldest from core.relayed_types() t cross join lateral (
        select count(*) as count, min(r.relayed_at) as oldest from (
          select o.relayed_at from core.outbox o where o.generation = t.generation and o.event_type = t.event_type
            and o.status = 'relayed' and o.deleted_at is null order by o.relayed_at limit 2000) r) f
      union all
      select f.event_type, null, 'failed', count(*), min(f.claimed_at) from (
        select o.event_type, o.claimed_at from core.outbox o
        where o.status = 'failed' and o.deleted_at is null
          and (v_muted = '{}' or not core.failures_muted(o.handler_failures, v_muted))
        order by o.claimed_at desc limit 2000) f
      group by f.event_type)
    select 'spectral.backlog', c.event_type, c.generation, c.status, c.count::double precision
    from counted c where c.count > 0
    union all
    select 'spectral.backlog.age', c.event_type, c.generation, c.status,
      extract(epoch from v_now - c.oldest)::double precision
    from counted c where isfinite(c.oldest);
  v_window := core.retention_window('outbox_row');
  return query
    select s.metric, null, null::bigint, null, s.value::double precision from (values
      ('spectral.breakers.open', (select count(*) from core.breakers)),
      ('spectral.events.quarantined', (select count(*) from core.quarantined_events)),
      ('spectral.events.expiring', (select count(*) from (select o.* from core.outbox o
        where o.status = 'failed' and o.deleted_at is null and o.claimed_at <= v_window.expired + interval '7 days'
        order by o.claimed_at limit 10000) o
        where core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired + interval '7 days', v_window.grace_over + interval '7 days'))),
      ('spectral.leases.overdue', (select count(*) from (select o.claimed_at, o.lease_seconds from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null order by o.id limit 10000) f
        where f.claimed_at < v_now - make_interval(secs => f.lease_seconds + 60))),
      ('spectral.events.replayed', (select coalesce(sum(cardinality(a.event_ids)), 0) from core.operator_actions a
        where a.action = 'replay' and a.acted_at >= p_since and a.deleted_at is null)),
      ('spectral.rows.overdue', (select count(*) from (select o.* from core.outbox o order by o.id limit 2000) o
        where o.id < core.uuid_v7_floor(v_window.expired - interval '1 day') and core.outbox_expired(o.status,
          o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired - interval '1 day', v_window.grace_over - interval '1 day'))),
      ('spectral.outbox.rows', (select sum(greatest(c.reltuples, 0)) from pg_class c
        where c.oid = 'core.outbox'::regclass
          or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = 'core.outbox'::regclass))),
      ('spectral.outbox.partitions', (select count(*) from pg_inherits i where i.inhparent = 'core.outbox'::regclass)),
      ('spectral.latency.p99', (select h.p99_ms / 1000.0 from core.delivery_latency_hours h
        where h.hour >= date_trunc('hour', v_now - interval '1 hour', 'UTC') order by h.hour desc limit 1)),
      ('spectral.notification_queue.usage', pg_notification_queue_usage()),
      ('spectral.snapshot.transactions', (pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        - pg_snapshot_xmin(pg_current_snapshot())::text::bigint))
      ) as s(metric, value)
    where s.value is not null;
end
$$;
-- +goose StatementEnd
grant execute on function core.metrics to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.metrics;
drop function core.event_stats_add;
drop view core.delivery_latency_hours;
drop function core.latency_sample;
drop table core.event_stats;
drop table core.delivery_latencies;
