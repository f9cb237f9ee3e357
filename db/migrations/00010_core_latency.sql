-- Delivery latency by the hour.
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
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop view core.delivery_latency_hours;
drop function core.latency_sample;
drop table core.delivery_latencies;
