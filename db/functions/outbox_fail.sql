-- core.outbox_fail(...) settles one dispatched row as failed (a dead letter), counting the
-- dispatch; claimed_at becomes the time it failed. p_available_at and p_last_error as in core.outbox_retry. Writes
-- core.outbox.
create function core.outbox_fail(p_id uuid, p_occurred_at timestamptz, p_available_at timestamptz, p_last_error text,
  p_handler_failures jsonb) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_status text;
begin
  perform from core.outbox o
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'pending' and o.deleted_at is null
    and o.available_at = p_available_at for update;
  if not found then return false; end if;
  update core.outbox o set status = 'failed', attempts = o.attempts + 1, claimed_at = clock_timestamp(),
      last_error = core.error_text(p_last_error), handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at returning o.status into v_status;
  if v_status is distinct from 'failed' then perform core.row_kept(); end if;
  return true;
end
$$;
