-- core.outbox_undiscard(p_event_id, p_undiscarded_by, p_occurred_at) takes core.outbox_discard back, within its days of
-- grace: the event is failed again, as it was, and can be replayed. One that is past its retention by then is kept for
-- as many days once more: replay it before. Refuses an unknown event (SP031), one that is not discarded (SP034), one
-- that retention has tombstoned or that was discarded longer ago (SP033), an id of several events without p_occurred_at
-- (SP035), a blank name (SP030). Writes core.outbox, core.operator_actions.
create function core.outbox_undiscard(p_event_id uuid, p_undiscarded_by text,
  p_occurred_at timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
begin
  v_occurred_at := core.operated_event('undiscard', p_event_id, p_occurred_at);
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('undiscard', p_event_id, v_occurred_at);
  perform from core.outbox_undiscard_many(array[p_event_id], p_undiscarded_by, array[v_occurred_at]);
  if not found then
    raise exception 'event %: was discarded too long ago', p_event_id
      using errcode = 'SP033', column = 'event_id', hint = 'publish it again if it is still wanted';
  end if;
end
$$;
