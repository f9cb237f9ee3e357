-- core.outbox_relayed_return_lost(p_generation, p_event_type, p_before, p_limit) gives back up to p_limit relayed rows
-- of a type, or of all with null, of a generation, or of all with null, that were sent before p_before: see
-- core.outbox_relayed_return. For rows whose messages the broker has no more, and for the way back from it. It passes
-- over rows that others have locked. Returns how many. Writes core.outbox.
create function core.outbox_relayed_return_lost(p_generation bigint, p_event_type text, p_before timestamptz,
  p_limit integer) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
declare
  v_ids uuid[];
  v_times timestamptz[];
begin
  select array_agg(r.id), array_agg(r.occurred_at) into v_ids, v_times from (
    select o.id, o.occurred_at from core.outbox o
    where o.status = 'relayed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      and (p_event_type is null or o.event_type = p_event_type) and o.relayed_at < p_before
    order by o.generation, o.event_type, o.relayed_at limit p_limit for update skip locked) r;
  if v_ids is null then return 0; end if;
  perform core.outbox_relayed_return(v_ids, v_times);
  return cardinality(v_ids);
end
$$;
