-- core.generation_status(p_generation) says what each generation still has, in order: those in core.deployments, and
-- any other that unsettled events name ('unknown'). With p_generation only that one. 'closing' is draining, but being
-- retired. due: pending, to be claimed now; scheduled: pending until later; in_flight: leased or relayed; failed: and
-- not discarded, which need its workers no longer. workers: processes of it whose session is there. Events that are
-- settled are not looked at, so that millions of them do not matter. Planned at each call: a plan for any p_generation
-- reads the backlog of all. Reads core.deployments, core.outbox, core.live_workers, core.paused_types.
create function core.generation_status(p_generation bigint default null) returns table (generation bigint, status text,
  registered_at timestamptz, draining_at timestamptz, closed_at timestamptz, retired_at timestamptz, due bigint,
  scheduled bigint, in_flight bigint, failed bigint, oldest_due timestamptz, next_scheduled timestamptz,
  last_scheduled timestamptz, workers bigint, publishing_default boolean, paused_types text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
  return query
    with pending as materialized (
      select o.generation, count(*) filter (where o.available_at <= statement_timestamp()) as due,
             count(*) filter (where o.available_at > statement_timestamp()) as scheduled,
             min(o.available_at) filter (where o.available_at <= statement_timestamp()) as oldest,
             min(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as next,
             max(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as last from core.outbox o
      where o.status = 'pending' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      group by o.generation),
    flying as materialized (
      select h.generation, count(*) as n from (
        select o.generation from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
        union all
        select o.generation from core.outbox o
        where o.status = 'relayed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)) h
      group by h.generation),
    failed as materialized (
      select o.generation, count(*) as n from core.outbox o
      where o.status = 'failed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      group by o.generation),
    known as (
      select d.generation from core.deployments d where p_generation is null or d.generation = p_generation
      union select generation from pending union select generation from flying union select generation from failed)
    select k.generation, case when d.status = 'draining' and d.closed_at is not null then 'closing'
        else coalesce(d.status, 'unknown') end, d.registered_at, d.draining_at, d.closed_at, d.retired_at,
      coalesce(p.due, 0), coalesce(p.scheduled, 0), coalesce(i.n, 0), coalesce(f.n, 0), p.oldest, p.next, p.last,
           (select count(*) from core.live_workers w where w.generation = k.generation),
           coalesce(d.status = 'live'
             and d.generation = (select max(l.generation) from core.deployments l where l.status = 'live'), false),
           array(select t.event_type from core.paused_types t where t.generation = k.generation order by t.event_type)
    from known k left join core.deployments d using (generation) left join pending p using (generation)
    left join flying i using (generation) left join failed f using (generation) order by k.generation;
end
$$;
