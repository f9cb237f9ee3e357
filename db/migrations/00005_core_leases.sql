-- Leases: claims that outlive their transaction.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- Leases that ran out: their workers are killed, frozen or cut off (docs/decisions/0011).
create table core.reaped_leases (
  claimed_by text not null,
  crashes integer not null,
  reaped_at timestamptz not null,
  constraint reaped_leases_pk primary key (claimed_by)
) with (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
comment on table core.reaped_leases is 'Workers whose leases were reaped lately: what ran out later was in flight beside it.';
comment on column core.reaped_leases.crashes is 'the most, before it was reaped, of any of those rows';
grant select on core.reaped_leases to spectral_operator;

-- +goose StatementBegin
-- db/functions/lease_holds.sql
create function core.lease_holds(p_claimed_at timestamptz, p_lease_seconds double precision) returns boolean
language sql volatile
-- not by when it runs out, which may lie beyond all times
as $$
  select p_claimed_at > clock_timestamp() - make_interval(secs => p_lease_seconds)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/lease_expires_in.sql
create function core.lease_expires_in() returns double precision
language sql stable security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
  -- null only without rows: greatest passes over a time that is missing
  select min(greatest(extract(epoch from
           -- of times that can be subtracted, whatever a hand may have written
           least(greatest(o.claimed_at, timestamptz '2000-01-01 00:00:00+00'), clock_timestamp() + interval '1 day')
           - clock_timestamp()) + o.lease_seconds, 0))::double precision
  from core.outbox o where o.status = 'in_flight' and o.deleted_at is null
$$;
grant execute on function core.lease_expires_in() to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/server_restarted.sql
create function core.server_restarted(p_since timestamptz) returns boolean
language sql stable
as $$
  select p_since < pg_postmaster_start_time()
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_lease.sql
create function core.outbox_lease(
  p_generation bigint, p_event_type text, p_limit integer default 1, p_lease double precision default 300,
  p_worker text default null, p_handlers text[] default '{}', p_floor timestamptz default '-infinity',
  p_crashes integer default null)
returns table (
  event_id uuid, event_type text, event_version integer, occurred_at timestamptz, source text, target text,
  content_class text, workspace_id uuid, payload jsonb, idempotency_key text, trace_context text,
  attempts integer, handler_failures jsonb, crashes integer, claim_token uuid, handled text[])
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
#variable_conflict use_column
declare
  v_due refcursor;
  v_row record;
  v_bytes bigint := 0;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if p_lease is null or not (p_lease > 0 and p_lease <= 86400) then
    raise exception 'p_lease %: must be above 0 and at most 86400 seconds', p_lease using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(p_worker) > 2000 then
    raise exception 'p_worker: % bytes, 2000 are the most', octet_length(p_worker) using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from unnest(p_handlers) as h(name) where octet_length(h.name) > 256) then
    raise exception 'p_handlers: a name has more than 256 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type) then
    return;
  end if;
  if p_crashes > 0 then
    open v_due for
      select o.id, o.payload, o.idempotency_key from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
        and o.available_at <= statement_timestamp() and o.crashes <= p_crashes
      order by o.available_at
      limit p_limit
      for update skip locked;
  else
    open v_due for
      select o.id, o.payload, o.idempotency_key from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null
        and o.available_at >= p_floor and o.available_at <= statement_timestamp()
        and (p_crashes is null or o.crashes = 0)
      order by o.available_at
      limit p_limit
      for update skip locked;
  end if;
  -- a loop fetches, and so locks, little more than it returns
  loop
    fetch v_due into v_row;
    exit when not found;
    update core.outbox o
    set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(), claimed_by = p_worker,
        lease_seconds = p_lease, attempts = least(o.attempts + 1, 1000000000),
        lease_handler = case when cardinality(p_handlers) = 1 then p_handlers[1] end
    where current of v_due
    returning o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
      o.payload, o.idempotency_key, o.trace_context, o.attempts, o.handler_failures, o.crashes, o.claim_token
    into event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id,
      payload, idempotency_key, trace_context, attempts, handler_failures, crashes, claim_token;
    handled := array(select h.handler_name from core.event_handled h
                     where h.handler_name = any (p_handlers) and h.idempotency_key = v_row.idempotency_key);
    return next;
    v_bytes := v_bytes + case when pg_column_compression(v_row.payload) is null then pg_column_size(v_row.payload)
                              else octet_length(v_row.payload::text) end;
    exit when v_bytes >= 16777216;
  end loop;
  close v_due;
end
$$;
grant execute on function core.outbox_lease(bigint, text, integer, double precision, text, text[], timestamptz, integer)
  to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_heartbeat.sql
create function core.outbox_heartbeat(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[], p_handlers text[] default null)
returns table (token uuid, held boolean)
language sql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  with given as materialized
    (select k.id, k.occurred_at, k.token, k.handler
     from unnest(p_ids, p_occurred_ats, p_tokens, p_handlers) as k(id, occurred_at, token, handler)),
  locked as materialized
    (select g.id, g.occurred_at, g.token, g.handler
     from given g join core.outbox o on o.id = g.id and o.occurred_at = g.occurred_at
     -- a CASE hides the condition of the partial index from plans made when nothing was in flight
     where o.id = any (p_ids) and case when o.status = 'in_flight' then o.deleted_at is null else false end and o.claim_token = g.token
       and core.lease_holds(o.claimed_at, o.lease_seconds)
     for update of o skip locked),
  renewed as
    (update core.outbox o set claimed_at = clock_timestamp(), lease_handler = coalesce(l.handler, o.lease_handler)
     from locked l where o.id = any (p_ids) and o.id = l.id and o.occurred_at = l.occurred_at
     returning l.token)
  select r.token, true from renewed r
  union all
  select g.token, false from given g
  where not exists (select from renewed r where r.token = g.token)
    and not exists
    (select from core.outbox o
     where o.id = any (p_ids) and o.id = g.id and o.occurred_at = g.occurred_at
       and case when o.status = 'in_flight' then o.deleted_at is null else false end
       and o.claim_token = g.token and core.lease_holds(o.claimed_at, o.lease_seconds))
$$;
grant execute on function core.outbox_heartbeat(uuid[], timestamptz[], uuid[], text[]) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_deliver_leased.sql
create function core.outbox_deliver_leased(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns setof uuid
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
grant execute on function core.outbox_deliver_leased(uuid[], timestamptz[], uuid[]) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_retry_leased.sql
create function core.outbox_retry_leased(
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
grant execute on function core.outbox_retry_leased(uuid, timestamptz, double precision, text, jsonb, boolean, uuid)
  to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_fail_leased.sql
create function core.outbox_fail_leased(
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
grant execute on function core.outbox_fail_leased(uuid, timestamptz, text, jsonb, boolean, uuid) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_release.sql
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
    from
      (select l.id, l.occurred_at, g.token
       from unnest(p_ids, p_occurred_ats, p_tokens) as g(id, occurred_at, token)
       join core.outbox l on l.id = g.id and l.occurred_at = g.occurred_at
       where l.id = any (p_ids) and case when l.status = 'in_flight' then l.deleted_at is null else false end
         and l.claim_token = g.token and core.lease_holds(l.claimed_at, l.lease_seconds)
       for update of l skip locked) as k
    where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
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
grant execute on function core.outbox_release(uuid[], timestamptz[], uuid[]) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_reap.sql
create function core.outbox_reap(p_limit integer default 50, p_after_id uuid default null, p_after_occurred_at timestamptz default null)
returns table (event_id uuid, occurred_at timestamptz, event_type text, generation bigint, attempts integer, charged boolean,
  reaped boolean, reason text)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_row record;
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_channel text;
  v_xid xid8;
  v_failures integer;
  v_message text;
  v_error text;
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    raise exception 'p_limit %: must be from 1 to 1000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if not core.lead('reap') then
    return;
  end if;
  v_xid := pg_current_xact_id(); -- before the time is read: core.outbox_floor
  for v_row in
    with held as materialized
      (select o.claimed_by, o.crashes, count(*) as rows from core.outbox o
       where o.status = 'in_flight' and o.deleted_at is null and o.claimed_by is not null
       group by o.claimed_by, o.crashes)
    select o.id, o.occurred_at, o.event_type, o.generation, o.channel, o.attempts, o.crashes, o.claim_token, o.claimed_by,
           o.claimed_at, o.lease_seconds, o.lease_handler, o.handler_failures,
           core.server_restarted(o.claimed_at) as restarted,
           o.crashes >= 9 or not exists (select from held h
             where h.claimed_by = o.claimed_by and h.crashes >= o.crashes and (h.crashes > o.crashes or h.rows > 1))
             and not exists (select from core.reaped_leases r
               where r.claimed_by = o.claimed_by and r.reaped_at > o.claimed_at and r.crashes >= o.crashes) as prime
    from core.outbox o
    where o.status = 'in_flight' and o.deleted_at is null
      and not core.lease_holds(coalesce(o.claimed_at, '-infinity'), o.lease_seconds)
      and (p_after_id is null or (o.id, o.occurred_at) > (p_after_id, coalesce(p_after_occurred_at, '-infinity')))
    order by o.id, o.occurred_at
    limit p_limit
    for update of o skip locked
  loop
    event_id := v_row.id;
    occurred_at := v_row.occurred_at;
    event_type := v_row.event_type;
    generation := v_row.generation;
    attempts := v_row.attempts;
    charged := v_row.prime and v_row.lease_handler is not null and v_row.restarted is not true;
    v_message := format('the lease of %s s ran out: worker %s did not renew it after %s: killed, frozen or cut off%s',
      v_row.lease_seconds,
      coalesce(v_row.claimed_by, 'unknown'),
      to_char(v_row.claimed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      case when v_row.restarted then '; not counted against the handler: the server was started since'
           when charged or v_row.lease_handler is null then '' else '; not counted against the handler: the worker had other events in flight' end);
    -- that fits into last_error, whatever its letters
    reason := left(format('LeaseExpired: %s: %s', coalesce(v_row.lease_handler, 'outbox'), v_message), 2000);
    -- in a block of its own: a row that cannot be written must not keep those behind it
    <<trying>>
    for v_bare in 0..1 loop begin
      v_failures := case when jsonb_typeof(v_row.handler_failures #> array[v_row.lease_handler, 'failures']) = 'number'
                         then least(greatest((v_row.handler_failures #>> array[v_row.lease_handler, 'failures'])::numeric, 0), 1000000)::integer
                         else 0 end;
      update core.outbox o
      set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
          available_at = clock_timestamp(), crashes = o.crashes + case when v_row.restarted then 0 else 1 end, last_error = reason,
          first_failed_at = coalesce(o.first_failed_at, clock_timestamp()),
          handler_failures = case when not charged or v_bare = 1 then o.handler_failures
            else jsonb_set(o.handler_failures, array[v_row.lease_handler],
                   jsonb_build_object('failures', v_failures + 1, 'class', 'LeaseExpired', 'error', left(v_message, 1000))) end,
          failure_history = case when v_bare = 1 then o.failure_history else core.failure_history_with(o.failure_history,
            jsonb_build_object('reaped_at', clock_timestamp(), 'reason', reason, 'attempts', o.attempts,
              'handler', o.lease_handler, 'claimed_by', o.claimed_by, 'claimed_at', o.claimed_at)) end
      where o.id = v_row.id and o.occurred_at = v_row.occurred_at and o.claim_token = v_row.claim_token;
      if not found then
        raise exception 'a trigger keeps the row as it is';
      end if;
      insert into core.reaped_leases as r (claimed_by, crashes, reaped_at)
      select v_row.claimed_by, v_row.crashes, clock_timestamp() where v_row.claimed_by is not null and v_bare = 0
      on conflict (claimed_by) do update
      set reaped_at = excluded.reaped_at,
          crashes = case when r.reaped_at > v_row.claimed_at then greatest(r.crashes, excluded.crashes) else excluded.crashes end;
      reaped := true;
      charged := charged and v_bare = 0;
      v_ids := v_ids || v_row.id;
      v_channels := v_channels || v_row.channel;
      exit trying;
    exception when others then
      reaped := false;
      v_error := sqlstate || ': ' || sqlerrm;
    end; end loop;
    if not reaped then
      charged := false;
      reason := v_error;
    end if;
    return next;
  end loop;
  for v_channel, v_id in select distinct on (n.channel) n.channel, n.id from unnest(v_channels, v_ids) as n(channel, id) order by n.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
  -- no lease is longer than a day
  delete from core.reaped_leases r where r.reaped_at < clock_timestamp() - interval '2 days';
end
$$;
grant execute on function core.outbox_reap(integer, uuid, timestamptz) to spectral_worker;
-- +goose StatementEnd

reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.lease_holds, core.lease_expires_in, core.server_restarted, core.outbox_lease,
  core.outbox_heartbeat, core.outbox_deliver_leased, core.outbox_retry_leased, core.outbox_fail_leased, core.outbox_release, core.outbox_reap;
drop table core.reaped_leases;
