-- core.event_stats_add(p_generation, p_lines, p_seconds_ago) adds what a worker has counted in the minute p_seconds_ago
-- to core.event_stats: to the minute and to its hour. A line has the fields of the table from event_type on; without a
-- handler_name it is of the type. Histograms have the bounds of docs/telemetry.md. One of the workers also counts the
-- events published up to the minute before the last, by their ids, in ten minutes at most, and deletes minutes after 24
-- hours and hours after 8 days. Refuses more than 2,000 lines. Writes core.event_stats; reads core.outbox,
-- core.event_types.
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
