-- core.outbox_discard(p_event_id, p_discarded_by, p_reason, p_occurred_at) gives a failed event up for good: a
-- tombstone (deleted_at), with who and why in core.operator_actions and, {discarded_at, discarded_by, reason}, in
-- failure_history. For the days of grace of core.retention_policies core.outbox_undiscard takes it back; retention then
-- deletes it. Refuses an unknown event (SP031), one that is not failed (SP032), a tombstone (SP033), an id of several
-- events without p_occurred_at (SP035), a blank name or reason (SP030). Writes core.outbox, core.operator_actions.
create function core.outbox_discard(p_event_id uuid, p_discarded_by text, p_reason text default null,
  p_occurred_at timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
begin
  v_occurred_at := core.operated_event('discard', p_event_id, p_occurred_at);
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('discard', p_event_id, v_occurred_at);
  perform core.outbox_discard_many(array[p_event_id], p_discarded_by, p_reason, array[v_occurred_at]);
end
$$;
