-- core.outbox_discard_many(p_event_ids, p_discarded_by, p_reason, p_occurred_ats, p_failed_before) discards up to 1000
-- failed events: what core.outbox_discard does to one. Which are passed over: core.operated_rows. Returns what was
-- discarded. P_discarded_by may be null: then it is the login. Refuses malformed arguments (SP030). Writes core.outbox,
-- core.operator_actions.
create function core.outbox_discard_many(p_event_ids uuid[], p_discarded_by text, p_reason text default null,
  p_occurred_ats timestamptz[] default null, p_failed_before timestamptz default null) returns table (event_id uuid,
  occurred_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_ids uuid[];
  v_ats timestamptz[];
  v_now constant timestamptz := clock_timestamp();
begin
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('discard', p_event_ids, p_occurred_ats, p_failed_before) r;
  with written as
    (update core.outbox o set deleted_at = v_now, discarded_at = v_now, undiscarded_at = null,
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('discarded_at', v_now, 'discarded_by', coalesce(btrim(p_discarded_by), session_user),
             'reason', btrim(p_reason)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}') into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('discard', p_discarded_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids), 'reason', btrim(p_reason)));
  end if;
end
$$;
