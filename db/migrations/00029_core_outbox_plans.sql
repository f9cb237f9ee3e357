-- Settling finds its rows by the primary key, whatever the planner thinks of the table: a plan made
-- when it was empty is kept for as long as the session, and would read all of it for each batch. A
-- CASE hides the condition of the partial index, which such a plan would read from end to end.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_deliver(p_ids, p_occurred_ats) settles claimed rows as delivered, counting the
-- dispatch. Row i is named by the i-th id and occurred_at. Only pending rows are settled; returns
-- how many were, for the caller to compare: of several rows those of the same ids are settled that
-- occurred in the same span of time, which is one more when an id has a twin that is not named.
-- Writes core.outbox.
create or replace function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off
as $$
declare
  v_settled integer;
  v_from timestamptz;
  v_to timestamptz;
begin
  select min(t), max(t) into v_from, v_to from unnest(p_occurred_ats) as t;
  update core.outbox o
  set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
  where o.id = any (p_ids) and o.occurred_at between v_from and v_to
    and case when o.status = 'pending' then o.deleted_at is null else false end;
  get diagnostics v_settled = row_count;
  return v_settled;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- core.outbox_retry(...) re-pends one dispatched row: due again p_delay seconds from now by the
-- database clock, the failure recorded, the dispatch counted unless p_counted is false (shutdown,
-- lost connection, 40001, 40P01 are free). p_available_at is what the row had when it was claimed and
-- tells that dispatch from any later one: a row that moved on meanwhile is left alone, and false
-- returned. p_last_error has at most 8192 bytes.
-- Wakes the listeners at commit, so that each knows when the row is due. Writes core.outbox.
create or replace function core.outbox_retry(
  p_id uuid, p_occurred_at timestamptz, p_available_at timestamptz, p_delay double precision,
  p_last_error text, p_handler_failures jsonb, p_counted boolean
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off
as $$
declare
  v_channel text;
begin
  if p_delay is null or p_delay < 0 or p_delay > 86400 then
    raise exception 'p_delay %: must be from 0 to 86400 seconds', p_delay using errcode = 'invalid_parameter_value';
  end if;
  select o.channel into v_channel from core.outbox o
  where o.id = p_id and o.occurred_at = p_occurred_at and o.available_at = p_available_at
    and case when o.status = 'pending' then o.deleted_at is null else false end
  for update;
  if not found then
    return false;
  end if;
  update core.outbox o
  set attempts = o.attempts + case when p_counted then 1 else 0 end,
      available_at = clock_timestamp() + make_interval(secs => p_delay),
      last_error = p_last_error,
      handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at;
  perform pg_notify(v_channel, p_id::text);
  return true;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- core.outbox_fail(...) settles one dispatched row as failed (a dead letter), counting the
-- dispatch; claimed_at becomes the time it failed. p_available_at and p_last_error as in core.outbox_retry. Writes
-- core.outbox.
create or replace function core.outbox_fail(
  p_id uuid, p_occurred_at timestamptz, p_available_at timestamptz, p_last_error text, p_handler_failures jsonb
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off
as $$
begin
  perform from core.outbox o
  where o.id = p_id and o.occurred_at = p_occurred_at and o.available_at = p_available_at
    and case when o.status = 'pending' then o.deleted_at is null else false end
  for update;
  if not found then
    return false;
  end if;
  update core.outbox o
  set status = 'failed', attempts = o.attempts + 1, claimed_at = clock_timestamp(),
      last_error = p_last_error, handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at;
  return true;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
-- the functions stay: they do the same for earlier builds
select 1;
