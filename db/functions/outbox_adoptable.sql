-- core.outbox_adoptable(p_from, p_to, p_event_types) is the dry run of core.outbox_adopt. For each of the given types,
-- or all, that p_from has events of, and each target of its events (null: every context), it returns how many would be
-- moved (due or relayed, and scheduled), how many would not (in flight), and how many live workers of p_to have a
-- handler for the type and target (core.handles). With 0 workers, or if the type is paused in p_to, the events would
-- wait there. Refuses what core.outbox_adopt refuses. Writes nothing. Reads core.outbox, core.live_workers,
-- core.paused_types.
create function core.outbox_adoptable(p_from bigint, p_to bigint,
  p_event_types text[] default null) returns table (event_type text, due bigint, scheduled bigint, in_flight bigint,
  workers bigint, paused boolean, target text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
begin
  perform core.adoption_check(p_from, p_to, false);
  return query
    with
    left_over as materialized (
      select o.event_type, o.target,
             count(*) filter (where o.status = 'relayed'
               or o.status = 'pending' and o.available_at <= statement_timestamp()) as due,
             count(*) filter (where o.status = 'pending' and o.available_at > statement_timestamp()) as scheduled,
             count(*) filter (where o.status = 'in_flight') as in_flight
      from (select p.event_type, p.target, p.status, p.available_at from core.outbox p
            where p.generation = p_from and p.status = 'pending' and p.deleted_at is null
            union all
            select f.event_type, f.target, f.status, f.available_at from core.outbox f
            where f.generation = p_from and f.status = 'in_flight' and f.deleted_at is null
            union all
            select r.event_type, r.target, r.status, r.available_at from core.outbox r
            where r.generation = p_from and r.status = 'relayed' and r.deleted_at is null) o
      where p_event_types is null or o.event_type = any (p_event_types) group by o.event_type, o.target)
    select l.event_type, l.due, l.scheduled, l.in_flight,
           (select count(*) from core.live_workers w where w.generation = p_to
              and exists (select from jsonb_array_elements_text(w.handlers -> l.event_type) as h(handler)
                where core.handles(h.handler, l.target))),
           exists (select from core.paused_types s where s.generation = p_to and s.event_type = l.event_type),
           l.target from left_over l order by l.event_type, l.target nulls first;
end
$$;
