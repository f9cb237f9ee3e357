-- core.outbox_relayed_fail(p_id, p_occurred_at, p_handlers) locks a row whose handler has failed, so that the caller
-- may record the failure as that of a claimed row (core.outbox_retry, core.outbox_fail): a relayed one becomes pending,
-- due now. Handled are those of p_handlers that have handled the event. Returns nothing for a row that is settled. It
-- waits five seconds for the row, and then fails. Writes core.outbox; reads core.event_handled.
create function core.outbox_relayed_fail(p_id uuid, p_occurred_at timestamptz, p_handlers text[])
returns table (available_at timestamptz, attempts integer, handler_failures jsonb, handled text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
begin
  perform from core.outbox o where o.id = p_id and o.occurred_at = p_occurred_at for update;
  return query
    update core.outbox o set status = 'pending', relayed_at = coalesce(o.relayed_at, clock_timestamp()),
      available_at = case o.status when 'relayed' then clock_timestamp() else o.available_at end
    where o.id = p_id and o.occurred_at = p_occurred_at and o.status in ('relayed', 'pending') and o.deleted_at is null
    returning o.available_at, o.attempts, o.handler_failures,
      array(select e.handler_name from core.event_handled e
            where e.handler_name = any (p_handlers) and e.idempotency_key = o.idempotency_key);
end
$$;
