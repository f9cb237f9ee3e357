-- core.latency_sample(p_sample) adds a sample of the events published between 70 and 10 seconds ago to
-- core.delivery_latencies: at most p_sample of them, from a random point on. Every worker calls it each minute, and the
-- first samples for all. It returns how many events it sampled, null if another worker has just done so.
--
-- The latency is the time from when an event was due to when it was settled, or until now if it is not. Failed events
-- are left out, because they wait on purpose, and so are events of paused types, and of processing classes, which take
-- as long as their work does. Events are found by their ids, which are in order of time; a producer's own id may not
-- be. Writes core.delivery_latencies; reads core.outbox, core.paused_types.
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
