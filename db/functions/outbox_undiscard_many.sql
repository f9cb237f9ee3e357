-- core.outbox_undiscard_many(p_event_ids, p_undiscarded_by, p_occurred_ats) takes back up to 1000 discards: what
-- core.outbox_undiscard does to one. Which are passed over: core.operated_rows. Returns what is failed again.
-- P_undiscarded_by may be null: then it is the login. Refuses malformed arguments (SP030). Writes core.outbox,
-- core.operator_actions; reads core.retention_policies.
create function core.outbox_undiscard_many(p_event_ids uuid[], p_undiscarded_by text,
  p_occurred_ats timestamptz[] default null) returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_ids uuid[];
  v_ats timestamptz[];
begin
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('undiscard', p_event_ids, p_occurred_ats) r;
  with written as
    (update core.outbox o set deleted_at = null, discarded_at = null, undiscarded_at = clock_timestamp(),
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('undiscarded_at', clock_timestamp(), 'undiscarded_by',
             coalesce(btrim(p_undiscarded_by), session_user)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}') into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('undiscard', p_undiscarded_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
end
$$;
