-- core.outbox_deliver(p_ids, p_occurred_ats) settles claimed rows as delivered and counts the dispatch. Of the times
-- only the first and the last matter: all rows of these ids that occurred between them are settled, if they are
-- pending. It returns how many, for the caller to compare, as an id may have more than one row. Writes core.outbox.
create function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_settled integer;
  v_from timestamptz;
  v_to timestamptz;
begin
  select min(t), max(t) into v_from, v_to from unnest(p_occurred_ats) as t;
  with written as
    (update core.outbox o set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
     where o.id = any (p_ids) and o.occurred_at between v_from and v_to
       and case when o.status = 'pending' then o.deleted_at is null else false end returning o.status)
  -- a trigger may have changed the new row
  select count(*) filter (where w.status = 'delivered') into v_settled from written w;
  return v_settled;
end
$$;
