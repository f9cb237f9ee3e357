-- core.outbox_retry_leased(...) re-pends one leased row: due again p_delay seconds from now, the failure
-- recorded. With p_counted false the attempt is taken back. For p_last_error see core.error_text.
-- False: the row is not the caller's any more. Wakes the listeners at commit. Writes core.outbox.
create function core.outbox_retry_leased(p_id uuid, p_occurred_at timestamptz, p_delay double precision,
  p_last_error text, p_handler_failures jsonb, p_counted boolean, p_token uuid) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_channel text;
  v_xid xid8;
begin
  if p_delay is null or not (p_delay >= 0 and p_delay <= 86400) then
    raise exception 'p_delay %: must be from 0 to 86400 seconds', p_delay using errcode = 'invalid_parameter_value';
  end if;
  v_xid := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  update core.outbox o set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
      attempts = greatest(o.attempts - case when p_counted then 0 else 1 end, 0),
      available_at = clock_timestamp() + make_interval(secs => p_delay),
      last_error = core.error_text(p_last_error), handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'in_flight' and o.deleted_at is null
    and o.claim_token = p_token and core.lease_holds(o.claimed_at, o.lease_seconds)
  returning o.channel into v_channel;
  perform core.lease_settled(array[p_id], array[p_occurred_at], array[p_token]);
  if v_channel is null then return false; end if;
  perform pg_notify(v_channel, p_id::text);
  return true;
end
$$;
