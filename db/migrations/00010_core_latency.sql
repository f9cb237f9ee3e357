-- Delivery latency by the hour, and what metrics say about the database.
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
       and (s.status = 'delivered' and s.attempts > 0 or s.status = 'pending' and s.available_at <= v_now
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

-- +goose StatementBegin
create function core.metrics(p_since timestamptz)
returns table (metric text, event_type text, status text, value double precision)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := clock_timestamp();
  v_window record;
  v_types constant integer := (select count(*) from core.pending_types());
  v_most constant integer := greatest(20000 / greatest(2 * v_types, 2), 10);
begin
  return query
    with counted as materialized (
      select t.event_type, s.status, s.count, s.oldest from core.pending_types() t cross join lateral (
        select 'due' as status, count(*) as count, min(d.available_at) as oldest from (
          select o.available_at from core.outbox o
          where o.generation = t.generation and o.event_type = t.event_type and o.status = 'pending'
            and o.deleted_at is null and o.available_at <= v_now order by o.available_at limit v_most) d
        union all
        select 'scheduled', count(*), null from (
          select from core.outbox o
          where o.generation = t.generation and o.event_type = t.event_type and o.status = 'pending'
            and o.deleted_at is null and o.available_at > v_now order by o.available_at limit v_most) d) s
      union all
      select f.event_type, 'in_flight', count(*), min(f.claimed_at) from (
        select o.event_type, o.claimed_at from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null order by o.id limit 10000) f group by f.event_type
      union all
      select f.event_type, 'failed', count(*), min(f.claimed_at) from (
        select o.event_type, o.claimed_at from core.outbox o
        where o.status = 'failed' and o.deleted_at is null order by o.claimed_at limit 10000) f group by f.event_type)
    select 'spectral.backlog', c.event_type, c.status, sum(c.count)::double precision
    from counted c group by c.event_type, c.status having sum(c.count) > 0
    union all
    select 'spectral.backlog.age', c.event_type, c.status,
      extract(epoch from v_now - min(c.oldest))::double precision
    from counted c where isfinite(c.oldest) group by c.event_type, c.status;
  v_window := core.retention_window('outbox_row');
  return query
    select s.metric, null, null, s.value::double precision from (values
      ('spectral.events.quarantined', (select count(*) from core.quarantined_events)),
      ('spectral.events.expiring', (select r.failed_expiring from core.retention_status() r)),
      ('spectral.leases.overdue', (select count(*) from (select o.claimed_at, o.lease_seconds from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null order by o.id limit 10000) f
        where f.claimed_at < v_now - make_interval(secs => f.lease_seconds + 60))),
      ('spectral.events.replayed', (select coalesce(sum(cardinality(a.event_ids)), 0) from core.operator_actions a
        where a.action = 'replay' and a.acted_at >= p_since)),
      ('spectral.rows.overdue', (select count(*) from (select o.* from core.outbox o order by o.id limit 2000) o
        where o.id < core.uuid_v7_floor(v_window.expired - interval '1 day') and core.outbox_expired(o.status,
          o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired - interval '1 day', v_window.grace_over - interval '1 day'))),
      ('spectral.outbox.rows', (select sum(greatest(c.reltuples, 0)) from pg_class c
        where c.oid = 'core.outbox'::regclass
          or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = 'core.outbox'::regclass))),
      ('spectral.latency.p99', (select h.p99_ms / 1000.0 from core.delivery_latency_hours h
        order by h.hour desc limit 1)),
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
drop view core.delivery_latency_hours;
drop function core.latency_sample;
drop table core.delivery_latencies;
