-- core.generation_state(p_generation) returns the state of a generation for its workers: its status as in
-- core.generation_status (live, draining, closing, retired, unknown), or 'drained' if it is draining or closing and
-- nothing is pending, in flight or relayed. It uses three indexes, however large core.outbox is. Reads
-- core.deployments, core.outbox.
create function core.generation_state(p_generation bigint) returns text
language sql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
  select coalesce(
    (select case
       when d.status = 'draining'
         and not exists (select from core.outbox o where o.generation = p_generation and o.status = 'pending'
           and o.deleted_at is null)
         and not exists (select from core.outbox o where o.generation = p_generation and o.status = 'in_flight'
           and o.deleted_at is null)
         and not exists (select from core.outbox o where o.generation = p_generation and o.status = 'relayed'
           and o.deleted_at is null) then 'drained'
       when d.status = 'draining' and d.closed_at is not null then 'closing'
       else d.status end from core.deployments d where d.generation = p_generation), 'unknown')
$$;
