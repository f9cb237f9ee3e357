-- core.outbox_relayed_return_lost(p_generation, p_event_type, p_before, p_oldest, p_limit) gives back up to p_limit
-- relayed rows of a type, or of all with null, of a generation, or of all with null: see core.outbox_relayed_return.
-- For rows whose messages the broker has no more, and for the way back from it. It takes those that were sent before
-- p_before, or, if p_oldest is given, ten seconds before that event: the broker has no older message of the type, and
-- acks come within seconds. It passes over rows that others have locked. Returns how many it gave back. Writes
-- core.outbox.
create function core.outbox_relayed_return_lost(p_generation bigint, p_event_type text, p_before timestamptz,
  p_oldest uuid, p_limit integer) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
declare
  v_before constant timestamptz := case when p_oldest is null then p_before
    else (select min(o.relayed_at) - interval '10 seconds' from core.outbox o where o.id = p_oldest) end;
  v_ids uuid[];
  v_times timestamptz[];
begin
  select array_agg(r.id), array_agg(r.occurred_at) into v_ids, v_times from (
    select o.id, o.occurred_at from core.outbox o
    where o.status = 'relayed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      and (p_event_type is null or o.event_type = p_event_type) and o.relayed_at < v_before
    order by o.generation, o.event_type, o.relayed_at limit p_limit for update skip locked) r;
  if v_ids is null then return 0; end if;
  return core.outbox_relayed_return(v_ids, v_times);
end
$$;
