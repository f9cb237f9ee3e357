-- What ends a lease. Each names the row by id, occurred_at and the token of its lease, and does nothing
-- where the row is under another token, or under this one no longer by the database clock: whoever
-- was frozen past its lease changes nothing. The functions of row-locked mode have the same names and no token.
-- A CASE hides the condition of the partial index, which plans made when nothing was in flight would read from
-- end to end (as in 00029); and the ids are asked for as an array, too, so that no such plan reads the primary key so.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_deliver(p_ids, p_occurred_ats, p_tokens) settles leased rows as delivered; their attempt
-- was counted as they were leased. Returns the tokens of those that were the caller's. Writes core.outbox.
create function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns setof uuid
language sql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  update core.outbox o
  set status = 'delivered', delivered_at = clock_timestamp(), claim_token = null, claimed_by = null, lease_handler = null
  from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
  where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
    and case when o.status = 'in_flight' then o.deleted_at is null else false end
    and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds)
  returning k.token
$$;
-- +goose StatementEnd
grant execute on function core.outbox_deliver(uuid[], timestamptz[], uuid[]) to spectral_worker;

-- +goose StatementBegin
-- core.outbox_retry(...) re-pends one leased row: due again p_delay seconds from now, the failure
-- recorded. With p_counted false the attempt is taken back. p_last_error has at most 8192 bytes.
-- False: the row is not the caller's any more. Wakes the listeners at commit. Writes core.outbox.
create function core.outbox_retry(
  p_id uuid, p_occurred_at timestamptz, p_delay double precision,
  p_last_error text, p_handler_failures jsonb, p_counted boolean, p_token uuid
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
  v_channel text;
  v_xid xid8;
begin
  if p_delay is null or not (p_delay >= 0 and p_delay <= 86400) then
    raise exception 'p_delay %: must be from 0 to 86400 seconds', p_delay using errcode = 'invalid_parameter_value';
  end if;
  v_xid := pg_current_xact_id(); -- before the time is read: core.outbox_floor
  update core.outbox o
  set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
      attempts = greatest(o.attempts - case when p_counted then 0 else 1 end, 0),
      available_at = clock_timestamp() + make_interval(secs => p_delay),
      last_error = p_last_error,
      handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'in_flight' and o.deleted_at is null
    and o.claim_token = p_token and core.lease_holds(o.claimed_at, o.lease_seconds)
  returning o.channel into v_channel;
  if not found then
    return false;
  end if;
  perform pg_notify(v_channel, p_id::text);
  return true;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_retry(uuid, timestamptz, double precision, text, jsonb, boolean, uuid) to spectral_worker;

-- +goose StatementBegin
-- core.outbox_fail(...) settles one leased row as failed (a dead letter); claimed_at becomes the time
-- it failed. With p_counted false the attempt is taken back: nothing ran. False: the row is not the caller's
-- any more. Writes core.outbox.
create function core.outbox_fail(
  p_id uuid, p_occurred_at timestamptz, p_last_error text, p_handler_failures jsonb, p_counted boolean, p_token uuid
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
  update core.outbox o
  set status = 'failed', claim_token = null, claimed_by = null, lease_handler = null, claimed_at = clock_timestamp(),
      attempts = greatest(o.attempts - case when p_counted then 0 else 1 end, 0),
      last_error = p_last_error, handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'in_flight' and o.deleted_at is null
    and o.claim_token = p_token and core.lease_holds(o.claimed_at, o.lease_seconds);
  return found;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_fail(uuid, timestamptz, text, jsonb, boolean, uuid) to spectral_worker;

-- +goose StatementBegin
-- core.outbox_release(p_ids, p_occurred_ats, p_tokens) gives leased rows back as if they had not been leased:
-- due at once, the attempt taken back. For a worker that stops. Returns the tokens of those that were
-- the caller's. Wakes the listeners at commit. Writes core.outbox.
create function core.outbox_release(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_channel text;
  v_token uuid;
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_floor
begin
  for v_id, v_channel, v_token in
    update core.outbox o
    set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
        attempts = greatest(o.attempts - 1, 0), available_at = clock_timestamp()
    from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
    where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
      and case when o.status = 'in_flight' then o.deleted_at is null else false end
      and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds)
    returning o.id, o.channel, k.token
  loop
    v_ids := v_ids || v_id;
    v_channels := v_channels || v_channel;
    return next v_token;
  end loop;
  for v_channel, v_id in select distinct on (n.channel) n.channel, n.id from unnest(v_channels, v_ids) as n(channel, id) order by n.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_release(uuid[], timestamptz[], uuid[]) to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.outbox_release(uuid[], timestamptz[], uuid[]);
drop function core.outbox_fail(uuid, timestamptz, text, jsonb, boolean, uuid);
drop function core.outbox_retry(uuid, timestamptz, double precision, text, jsonb, boolean, uuid);
drop function core.outbox_deliver(uuid[], timestamptz[], uuid[]);
