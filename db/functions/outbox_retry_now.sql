-- core.outbox_retry_now(p_event_id, p_retried_by, p_occurred_at) makes an event due at once that is pending and waits
-- for a later time, after a failure or because it was scheduled. A quarantined event may be claimed again. Attempts and
-- handler_failures stay: a parked handler stays parked until a replay. Refuses an unknown event (SP031), one that is
-- not pending, that waits for a breaker or that another session has locked (SP032), a tombstone (SP033), one that is
-- due already (SP034), an id of several events without p_occurred_at (SP035), a blank name (SP030). Writes core.outbox,
-- core.operator_actions.
create function core.outbox_retry_now(p_event_id uuid, p_retried_by text default null,
  p_occurred_at timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at constant timestamptz := core.operated_event('retry_now', p_event_id, p_occurred_at);
begin
  if not exists (select from core.outbox_retry_now_many(array[p_event_id], p_retried_by, array[v_occurred_at])) then
    perform core.operated_event('retry_now', p_event_id, v_occurred_at); -- its status has changed in that time
    raise exception 'event %: another session is changing it', p_event_id
      using errcode = 'SP032', column = 'event_id', hint = 'repeat the call in a moment';
  end if;
end
$$;
