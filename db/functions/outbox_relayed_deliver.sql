-- core.outbox_relayed_deliver(p_handlers, p_ids, p_occurred_ats) settles those of these relayed rows as delivered that
-- every handler of theirs has handled; p_handlers are all handlers of the type. Returns their ids, and those of rows
-- that are pending, for the caller to have claimed once it has committed. Raises an error if a trigger keeps one of
-- them as it is. Rows are locked before the keys are read, so that of two handlers that end at once one sees the key of
-- the other. It waits for a transaction that is sending a row. It leaves rows that were given back to the dispatcher.
-- Writes core.outbox; reads core.event_handled.
create function core.outbox_relayed_deliver(p_handlers text[], p_ids uuid[], p_occurred_ats timestamptz[])
returns table (id uuid, pending boolean)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  -- of partitions, only those with these times are read
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
  v_written integer;
begin
  if cardinality(p_handlers) > 1 then
    perform from (select k.id, k.occurred_at from unnest(p_ids, p_occurred_ats) as k(id, occurred_at) order by 1, 2) k
    -- row by row, so that no plan made for an empty outbox begins there
    cross join lateral
      (select from core.outbox o where o.id = k.id and o.occurred_at = k.occurred_at
         and case
           when o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null then o.deleted_at is null end
       for update) l;
  end if;
  return query
    with written as
      (update core.outbox o set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
       where o.id = any (p_ids) and o.occurred_at between v_first and v_last
         -- a hash table of the pairs, as in core.outbox_deliver
         and case
           when (o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null) and o.deleted_at is null
             then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
         and (cardinality(p_handlers) = 1 or not exists
           (select from unnest(p_handlers) as h(name) where core.handles(h.name, o.target) and not exists
             (select from core.event_handled e
              where e.handler_name = h.name and e.idempotency_key = o.idempotency_key)))
       returning o.id, o.status)
    -- a trigger may have changed the new row
    select w.id, false from written w where case w.status when 'delivered' then true else core.row_kept() is null end;
  -- rows that were given back while this waited for them: it has locked them all the same
  get diagnostics v_written = row_count;
  if v_written = cardinality(p_ids) then return; end if;
  return query
    select o.id, true from core.outbox o where o.id = any (p_ids) and o.occurred_at between v_first and v_last
      and case when o.status = 'pending' then o.deleted_at is null end; -- a CASE keeps it from partial indexes
end
$$;
