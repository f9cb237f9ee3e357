-- core.outbox_relayed_take(p_generation, p_handler, p_ids, p_occurred_ats) says which events of a broker's messages a
-- handler may handle now: those of this generation that are not settled, in which it has not failed, and whose type is
-- not paused. It takes no lock: the dedup key decides. Of a message that comes before the transaction that sent it has
-- committed, the row is still pending. Reads core.outbox, core.paused_types, core.quarantined_events.
create function core.outbox_relayed_take(p_generation bigint, p_handler text, p_ids uuid[],
  p_occurred_ats timestamptz[]) returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  -- of partitions, only those with these times are read
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  return query
    select o.id from core.outbox o
    where o.id = any (p_ids) and o.occurred_at between v_first and v_last
      -- a hash table of the pairs, as in core.outbox_deliver
      and case when (o.status = 'relayed' or o.status = 'pending') and o.deleted_at is null
        then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
      and o.generation = p_generation and o.crashes = 0 and not o.handler_failures ? p_handler
      and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      and not exists
        (select from core.paused_types p where p.generation = o.generation and p.event_type = o.event_type);
end
$$;
