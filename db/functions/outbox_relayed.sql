-- core.outbox_relayed(p_ids, p_occurred_ats, p_stored) notes for claimed rows that they were sent to the broker. Those
-- that it has stored become relayed if events take that path, and are then its consumers' to settle; the others stay
-- pending, and are not sent again. Returns how many became relayed. It locks the path, so that none does after
-- core.relay_switch has returned, and fails if that takes two seconds. Raises an error if a trigger keeps a row as it
-- is. Writes core.outbox; reads core.relay.
create function core.outbox_relayed(p_ids uuid[], p_occurred_ats timestamptz[], p_stored boolean[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
set lock_timeout = '2s' as $$
declare
  v_path text;
  v_all constant boolean := true = all (p_stored); -- nearly always
  v_relayed integer;
  v_written integer;
  -- of partitions, only those with these times are read
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  perform pg_advisory_xact_lock_shared(4480265037518190933); -- as core.relay_switch
  select r.path into strict v_path from core.relay r;
  with written as
    (update core.outbox o set
       relayed_at = case when v_all or (o.id, o.occurred_at) in
         (select k.id, k.occurred_at from unnest(p_ids, p_occurred_ats, p_stored) as k(id, occurred_at, stored)
          where k.stored) then clock_timestamp() else '-infinity' end,
       status = case when v_path = 'jetstream' and (v_all or (o.id, o.occurred_at) in
         (select k.id, k.occurred_at from unnest(p_ids, p_occurred_ats, p_stored) as k(id, occurred_at, stored)
          where k.stored)) then 'relayed' else o.status end
     where o.id = any (p_ids) and o.occurred_at between v_first and v_last
       -- hash tables of the pairs, as in core.outbox_deliver
       and case when o.status = 'pending' and o.deleted_at is null
         then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
     returning o.status, o.relayed_at)
  select count(*) filter (where w.status = 'relayed'), count(w.relayed_at) into v_relayed, v_written from written w;
  if v_written <> cardinality(p_ids) then perform core.row_kept(); end if;
  return v_relayed;
end
$$;
