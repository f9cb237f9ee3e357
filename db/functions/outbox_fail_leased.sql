-- core.outbox_fail_leased(...) settles one leased row as failed (a dead letter); claimed_at becomes the time
-- it failed. With p_counted false the attempt is taken back: nothing ran. False: the row is not the caller's
-- any more. Writes core.outbox.
create function core.outbox_fail_leased(p_id uuid, p_occurred_at timestamptz, p_last_error text,
  p_handler_failures jsonb, p_counted boolean, p_token uuid) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_status text;
begin
  update core.outbox o
  set status = 'failed', claim_token = null, claimed_by = null, lease_handler = null, claimed_at = clock_timestamp(),
      attempts = greatest(o.attempts - case when p_counted then 0 else 1 end, 0),
      last_error = core.error_text(p_last_error), handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'in_flight' and o.deleted_at is null
    and o.claim_token = p_token and core.lease_holds(o.claimed_at, o.lease_seconds)
  returning o.status into v_status;
  perform core.lease_settled(array[p_id], array[p_occurred_at], array[p_token]);
  return v_status is not null;
end
$$;
