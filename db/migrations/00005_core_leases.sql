-- Leases: claims that outlive their transaction.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
create function core.lease_holds(p_claimed_at timestamptz, p_lease_seconds double precision) returns boolean
language sql volatile
as $$
  select p_claimed_at > clock_timestamp() - make_interval(secs => p_lease_seconds)
$$;
create function core.lease_expires_in() returns double precision
language sql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off set jit = off
as $$
  select min(greatest(extract(epoch from
           least(greatest(o.claimed_at, timestamptz '2000-01-01 00:00:00+00'), clock_timestamp() + interval '1 day')
           - clock_timestamp()) + o.lease_seconds, 0))::double precision
  from core.outbox o where o.status = 'in_flight' and o.deleted_at is null
    and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
$$;
create function core.server_restarted(p_since timestamptz) returns boolean language sql stable as $$
  select p_since < pg_postmaster_start_time()
$$;
create function core.outbox_lease(p_generation bigint, p_event_type text, p_limit integer default 1,
  p_lease double precision default 300, p_worker text default null, p_handlers text[] default '{}',
  p_watermark timestamptz default '-infinity', p_crashed boolean default null, p_probe text default null)
returns table (event_id uuid,
  event_type text, event_version integer, occurred_at timestamptz, source text, target text, content_class text,
  workspace_id uuid, payload jsonb, idempotency_key text, trace_context text, attempts integer, handler_failures jsonb,
  crashes integer, claim_token uuid, handled text[], available_at timestamptz, replayed boolean, breakers text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_due refcursor;
  v_from timestamptz := p_watermark;
  v_to timestamptz := statement_timestamp();
  v_row record;
  v_bytes bigint := 0;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if p_lease is null or not (p_lease > 0 and p_lease <= 86400) then
    raise exception 'p_lease %: must be above 0 and at most 86400 seconds', p_lease
      using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(p_worker) > 2000 then
    raise exception 'p_worker: % bytes, 2000 are the most', octet_length(p_worker)
      using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from unnest(p_handlers) as h(name) where octet_length(h.name) > 256) then
    raise exception 'p_handlers: a name has more than 256 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type) then
    return;
  end if;
  breakers := (select array_agg(b.handler_name) from core.breakers b
    where b.generation = p_generation and b.event_type = p_event_type and not b.closing);
  if p_probe is null and breakers @> p_handlers and cardinality(p_handlers) > 0 then -- there is nothing to run
    perform core.outbox_wait(p_generation, d.handler, array_agg(d.id), array_agg(d.occurred_at))
    from (select o.id, o.occurred_at,
        (select h.name from unnest(p_handlers) as h(name) where core.handles(h.name, o.target) limit 1) as handler
      from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending'
        and o.deleted_at is null and o.available_at <= statement_timestamp() and o.available_at >= p_watermark
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit 1000 for update skip locked) d
    where d.handler is not null group by d.handler;
  end if;
  if p_probe is not null then -- the times of those that wait, which are far ahead, by their own index
    select min(w.available_at), max(w.available_at) into v_from, v_to
    from (select o.available_at from core.outbox o
      where o.generation = p_generation and o.waiting_for = p_probe and o.status = 'pending' and o.deleted_at is null
      order by o.available_at limit p_limit) w;
  end if;
  if p_crashed then
    open v_due for
      select o.id, o.payload, o.idempotency_key from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
        and o.available_at <= statement_timestamp()
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit for update of o skip locked;
  else
    open v_due for
      select o.id, o.payload, o.idempotency_key from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null
        and o.available_at >= v_from and o.available_at <= v_to and (p_probe is null or o.waiting_for = p_probe)
        and (p_crashed is null or o.crashes = 0 or p_probe is not null)
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit for update of o skip locked;
  end if;
  loop
    fetch v_due into v_row;
    exit when not found;
    update core.outbox o
    set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(), claimed_by = p_worker,
        available_at = case when o.waiting_for is null then o.available_at else clock_timestamp() end,
        waiting_for = null,
        lease_seconds = p_lease, attempts = least(o.attempts, 999999999) + 1,
        lease_handler = case when cardinality(p_handlers) = 1 then p_handlers[1] end where current of v_due
    returning o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
      o.payload, o.idempotency_key, o.trace_context, o.attempts, o.handler_failures, o.crashes, o.claim_token,
      o.available_at, o.failure_history <> '[]' and core.prior_replays(o.failure_history) > 0
    into event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id,
      payload, idempotency_key, trace_context, attempts, handler_failures, crashes, claim_token, available_at,
      replayed;
    if claim_token is null then perform core.row_kept(); end if;
    handled := array(select h.handler_name from core.event_handled h
                     where h.handler_name = any (p_handlers) and h.idempotency_key = v_row.idempotency_key);
    return next;
    v_bytes := v_bytes + core.payload_bytes(v_row.payload) + core.payload_bytes(handler_failures);
    exit when v_bytes >= 16777216;
  end loop;
  close v_due;
end
$$;
create function core.outbox_heartbeat(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[],
  p_handlers text[] default null) returns table (token uuid, held boolean)
language sql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
  with given as materialized
    (select k.id, k.occurred_at, k.token, k.handler
     from unnest(p_ids, p_occurred_ats, p_tokens, p_handlers) as k(id, occurred_at, token, handler)),
  locked as materialized
    (select g.id, g.occurred_at, g.token, g.handler
     from given g join core.outbox o on o.id = g.id and o.occurred_at = g.occurred_at
     where o.id = any (p_ids) and case when o.status = 'in_flight' then o.deleted_at is null else false end
       and o.claim_token = g.token
       and core.lease_holds(o.claimed_at, o.lease_seconds) for update of o skip locked),
  renewed as
    (update core.outbox o set claimed_at = clock_timestamp(), lease_handler = coalesce(l.handler, o.lease_handler)
     from locked l where o.id = any (p_ids) and o.id = l.id and o.occurred_at = l.occurred_at returning l.token)
  select r.token, true from renewed r
  union all
  select g.token, false from given g where not exists (select from renewed r where r.token = g.token) and not exists
    (select from core.outbox o where o.id = any (p_ids) and o.id = g.id and o.occurred_at = g.occurred_at
       and case when o.status = 'in_flight' then o.deleted_at is null else false end
       and o.claim_token = g.token and core.lease_holds(o.claimed_at, o.lease_seconds))
$$;
create function core.lease_settled(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns void
language plpgsql volatile as $$
begin
  if exists (select from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
      join core.outbox o on o.id = k.id and o.occurred_at = k.occurred_at where o.id = any (p_ids)
      and case when o.status = 'in_flight' then o.deleted_at is null else false end
      and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds)) then
    perform core.row_kept();
  end if;
end
$$;
create function core.outbox_deliver_leased(p_ids uuid[], p_occurred_ats timestamptz[],
  p_tokens uuid[]) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
  return query
    with written as (
      update core.outbox o
      set status = 'delivered', delivered_at = clock_timestamp(), claim_token = null, claimed_by = null,
        lease_handler = null
      from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
      where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
        and case when o.status = 'in_flight' then o.deleted_at is null else false end
        and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds) returning k.token, o.status)
    select w.token from written w where case w.status when 'delivered' then true else core.row_kept() is null end;
  perform core.lease_settled(p_ids, p_occurred_ats, p_tokens);
end
$$;
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
create function core.outbox_release(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_channel text;
  v_token uuid;
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
begin
  for v_id, v_channel, v_token in
    update core.outbox o set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
        attempts = greatest(o.attempts - 1, 0), available_at = clock_timestamp() from
      (select l.id, l.occurred_at, g.token from unnest(p_ids, p_occurred_ats, p_tokens) as g(id, occurred_at, token)
       join core.outbox l on l.id = g.id and l.occurred_at = g.occurred_at
       where l.id = any (p_ids) and case when l.status = 'in_flight' then l.deleted_at is null else false end
         and l.claim_token = g.token and core.lease_holds(l.claimed_at, l.lease_seconds)
       for update of l skip locked) as k where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
    returning o.id, o.channel, k.token loop
    v_ids := v_ids || v_id;
    v_channels := v_channels || v_channel;
    return next v_token;
  end loop;
  perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
    from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
end
$$;
-- +goose StatementEnd
grant execute on function core.lease_expires_in, core.outbox_lease, core.outbox_heartbeat, core.outbox_deliver_leased,
  core.outbox_retry_leased, core.outbox_fail_leased, core.outbox_release to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.lease_holds, core.lease_settled, core.lease_expires_in, core.server_restarted, core.outbox_lease,
  core.outbox_heartbeat, core.outbox_deliver_leased, core.outbox_retry_leased, core.outbox_fail_leased,
    core.outbox_release;
