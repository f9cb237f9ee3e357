-- core.outbox_give_up(p_id, p_occurred_at, p_token, p_reason, p_quarantine, p_handlers) fails a pending row, or the one
-- in flight under p_token, that cannot be handled because of what is in it. If the row cannot be written either, or
-- with p_quarantine, it is quarantined: recorded in core.quarantined_events, and claimed no more. P_handlers have begun
-- (core.failed_by_sql). Returns 'failed' or 'quarantined'; null: another session has the row, or its state has changed.
-- Writes core.outbox, core.quarantined_events, core.failed_attempts, core.error_groups.
create function core.outbox_give_up(p_id uuid, p_occurred_at timestamptz, p_token uuid, p_reason text,
  p_quarantine boolean default false, p_handlers text[] default '{}') returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_row record;
  v_status text;
  v_reason text := left(p_reason, 1500); -- that fits into last_error, whatever its letters
begin
  select o.event_type, o.generation into v_row from core.outbox o
  where o.id = p_id and o.occurred_at = p_occurred_at and o.deleted_at is null
    and case when p_token is null then o.status = 'pending' else o.status = 'in_flight' and o.claim_token = p_token end
  for update skip locked;
  if not found then return null; end if;
  if not p_quarantine then
    begin
      update core.outbox o set status = 'failed', claim_token = null, claimed_by = null, lease_handler = null,
          claimed_at = clock_timestamp(), last_error = 'RowFault: outbox: ' || v_reason,
          handler_failures = o.handler_failures || core.failed_by_sql(p_id, p_occurred_at, 'RowFault', v_reason,
            p_handlers, null, null),
          first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
      where o.id = p_id and o.occurred_at = p_occurred_at returning o.status into v_status;
      if v_status is distinct from 'failed' then perform core.row_kept(); end if;
      set constraints all immediate; -- a deferred one would fail the commit
      delete from core.quarantined_events q where q.id = p_id and q.occurred_at = p_occurred_at;
      return 'failed';
    exception when others then
      if not core.row_fault(sqlstate, true) then raise; end if;
      v_reason := v_reason || '; and it cannot be failed: ' || left(sqlstate || ': ' || sqlerrm, 500);
    end;
  end if;
  insert into core.quarantined_events (id, occurred_at, event_type, generation, reason)
  values (p_id, p_occurred_at, v_row.event_type, v_row.generation, v_reason) on conflict (id, occurred_at) do nothing;
  return 'quarantined';
end
$$;
