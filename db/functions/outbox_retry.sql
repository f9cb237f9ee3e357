-- core.outbox_retry(...) re-pends one dispatched row: due again p_delay seconds from now by the
-- database clock, the failure recorded, the dispatch counted unless p_counted is false (shutdown,
-- lost connection, 40001, 40P01 are free). p_available_at is what the row had when it was claimed and
-- tells that dispatch from any later one: a row that has changed since is left alone, and false
-- returned. For p_last_error see core.error_text.
-- Wakes the listeners at commit, so that each knows when the row is due. Writes core.outbox.
create function core.outbox_retry(p_id uuid, p_occurred_at timestamptz, p_available_at timestamptz,
  p_delay double precision, p_last_error text, p_handler_failures jsonb, p_counted boolean) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_channel text;
  v_available_at timestamptz;
begin
  if p_delay is null or p_delay < 0 or p_delay > 86400 then
    raise exception 'p_delay %: must be from 0 to 86400 seconds', p_delay using errcode = 'invalid_parameter_value';
  end if;
  select o.channel into v_channel from core.outbox o
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'pending' and o.deleted_at is null
    and o.available_at = p_available_at for update;
  if not found then return false; end if;
  update core.outbox o set attempts = o.attempts + case when p_counted then 1 else 0 end,
      available_at = clock_timestamp() + make_interval(secs => p_delay),
      last_error = core.error_text(p_last_error), handler_failures = p_handler_failures, waiting_for = null,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at returning o.available_at into v_available_at;
  if v_available_at is null or v_available_at = p_available_at then perform core.row_kept(); end if;
  perform pg_notify(v_channel, p_id::text);
  return true;
end
$$;
