-- core.outbox_deliver(p_ids, p_occurred_ats) settles claimed rows as delivered and counts the dispatch. It settles
-- exactly these pairs of id and time, as an id may have more than one row, and waits for no other row. It returns how
-- many it settled, for the caller to compare. Writes core.outbox.
create function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_settled integer;
  -- of partitions, only those with these times are read
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  with written as
    (update core.outbox o set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
     where o.id = any (p_ids) and o.occurred_at between v_first and v_last
       -- a hash table of the pairs. A join planned on an empty table would read the whole table later.
       and case when o.status = 'pending' and o.deleted_at is null
         then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
     returning o.status)
  -- a trigger may have changed the new row
  select count(*) filter (where w.status = 'delivered') into v_settled from written w;
  return v_settled;
end
$$;
