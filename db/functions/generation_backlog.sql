-- core.generation_backlog(p_generation, p_handled_in) says, for each event type of which the generation has any, what
-- it has to do: due, scheduled until last_scheduled, in flight (leased or relayed); how many live workers of
-- p_handled_in, the generation itself if left out, handle the type; and whether it is paused there. Reads core.outbox,
-- core.live_workers, core.paused_types.
create function core.generation_backlog(p_generation bigint,
  p_handled_in bigint default null) returns table (event_type text, due bigint, scheduled bigint, in_flight bigint,
  next_scheduled timestamptz, last_scheduled timestamptz, workers bigint, paused boolean)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
    with pending as materialized (
      select o.event_type, count(*) filter (where o.available_at <= statement_timestamp()) as due,
             count(*) filter (where o.available_at > statement_timestamp()) as scheduled,
             min(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as next,
             max(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as last from core.outbox o
      where o.generation = p_generation and o.status = 'pending' and o.deleted_at is null group by o.event_type),
    flying as materialized (
      select h.event_type, count(*) as n from (
        select o.event_type from core.outbox o
        where o.generation = p_generation and o.status = 'in_flight' and o.deleted_at is null
        union all
        select o.event_type from core.outbox o
        where o.generation = p_generation and o.status = 'relayed' and o.deleted_at is null) h
      group by h.event_type)
    select t.event_type, coalesce(p.due, 0), coalesce(p.scheduled, 0), coalesce(f.n, 0), p.next, p.last,
           (select count(*) from core.live_workers w
            where w.generation = coalesce(p_handled_in, p_generation) and w.handlers ? t.event_type),
           exists (select from core.paused_types s where s.generation = coalesce(p_handled_in, p_generation)
             and s.event_type = t.event_type)
    from (select p.event_type from pending p union select f.event_type from flying f) as t
    left join pending p using (event_type) left join flying f using (event_type) order by t.event_type;
end
$$;
