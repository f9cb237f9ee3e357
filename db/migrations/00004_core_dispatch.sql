-- Dispatch in row-locked mode: poll, claim, settle.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- Event types that are not dispatched for the time being.
create table core.paused_types (
  event_type text not null,
  generation bigint not null,
  paused_at timestamptz not null default clock_timestamp(),
  paused_by text not null,
  reason text null,
  constraint paused_types_pk primary key (generation, event_type),
  constraint paused_types_generation_range check (generation between 1 and 999999999999),
  constraint paused_types_paused_by_size check (octet_length(paused_by) between 1 and 256),
  constraint paused_types_reason_size check (octet_length(reason) between 1 and 1024)
);
comment on table core.paused_types is 'Event types whose rows a generation does not claim until core.event_type_resume';
grant select on core.paused_types to spectral_operator;

-- Undelivered events whose rows can neither be handled nor be marked as failed.
create table core.quarantined_events (
  id uuid not null,
  occurred_at timestamptz not null,
  event_type text not null,
  generation bigint not null,
  reason text not null,
  quarantined_at timestamptz not null default clock_timestamp(),
  constraint quarantined_events_pk primary key (id, occurred_at)
);
comment on table core.quarantined_events is
  'Events whose rows cannot be written, because a trigger or constraint rejects it; no worker claims them until '
    'core.outbox_retry_now';
create index quarantined_events_of_type on core.quarantined_events (generation, event_type);
grant select on core.quarantined_events to spectral_operator;

-- +goose StatementBegin
create function core.payload_bytes(p_payload jsonb, p_refuse boolean default true) returns bigint
language plpgsql immutable as $$
declare
  c_most constant bigint := 16777216;
  c_few constant bigint := 16384; -- with so few numbers in it, the text is no danger
  c_long constant jsonpath := 'strict $.** ? (@ > 1e100 || @ < -1e100 || (@ < 1e-100 && @ > -1e-100 && @ != 0))';
  v_bytes bigint := pg_column_size(p_payload || '{}'); -- not compressed
  v_number jsonb;
begin
  if v_bytes > c_few and v_bytes <= c_most then
    begin
      if p_payload @? c_long then
        for v_number in select n from jsonb_path_query(p_payload, c_long) n loop
          v_bytes := v_bytes + octet_length(v_number::text);
          exit when v_bytes > c_most;
        end loop;
      end if;
    exception when statement_too_complex then
      null; -- nested too deeply for a path; the text can be made
    end;
  end if;
  if v_bytes > c_most and p_refuse then
    raise exception 'the payload or handler_failures has more than % bytes as text', c_most
      using errcode = 'program_limit_exceeded';
  end if;
  return v_bytes;
end
$$;
create function core.error_text(p_error text) returns text language sql immutable as $$
  select case when octet_length(p_error) <= 8192 then p_error else left(p_error, 2048) end
$$;
create function core.row_kept() returns void language plpgsql volatile as $$
begin
  raise exception 'a trigger or rule keeps the row as it is' using errcode = 'triggered_action_exception';
end
$$;
create function core.row_fault(p_sqlstate text, p_again boolean default false) returns boolean
language plpgsql immutable as $$
begin
  return left(p_sqlstate, 2) not in ('08', '53', '58') and left(p_sqlstate, 4) <> '57P0' and p_sqlstate <> '25006'
    and (p_again or left(p_sqlstate, 2) not in ('25', '26', '40', '55', '57', '72'));
end
$$;
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
create function core.outbox_isolate(p_generation bigint, p_event_type text, p_limit integer, p_watermark timestamptz,
  p_crashed boolean, p_step text, p_again boolean) returns table (event_id uuid, outcome text, reason text,
  source text, target text, attempts integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  v_start constant timestamptz := clock_timestamp();
  v_row record;
  v_token uuid;
  v_usable boolean;
  v_fault boolean;
  v_left integer := p_limit;
begin
  for v_row in
    select o.id, o.occurred_at, o.source, o.target, o.attempts from core.outbox o
    where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending' and o.deleted_at is null
      and o.available_at <= statement_timestamp() and (o.crashes > 0) = p_crashed
      and (p_crashed or o.available_at >= p_watermark)
      and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
    order by o.available_at for update of o skip locked loop
    v_usable := false;
    for v_try in 1 .. case when p_again then 4 else 1 end loop
      begin
        perform case when core.payload_bytes(o.payload) + core.payload_bytes(o.handler_failures) > 0
          then octet_length(o.payload::text) + octet_length(o.handler_failures::text)::bigint end
        from core.outbox o where o.id = v_row.id and o.occurred_at = v_row.occurred_at;
        if p_step = 'lease' then
          update core.outbox o
          set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(),
              claimed_by = 'probe', attempts = least(o.attempts, 999999999) + 1
          where o.id = v_row.id and o.occurred_at = v_row.occurred_at returning o.claim_token into v_token;
          if v_token is null then perform core.row_kept(); end if;
        elsif p_step = 'settle' and core.outbox_give_up(v_row.id, v_row.occurred_at, null, '') <> 'failed'
          and core.outbox_deliver(array[v_row.id], array[v_row.occurred_at]) = 0 then
          perform core.row_kept();
        end if;
        set constraints all immediate;
        v_usable := true;
        raise exception 'undo';
      exception when others then
        reason := sqlstate || ': ' || sqlerrm;
        v_fault := core.row_fault(sqlstate);
        v_usable := v_usable or not core.row_fault(sqlstate, p_again);
      end;
      exit when v_usable or v_fault;
    end loop;
    if not v_usable then
      event_id := v_row.id;
      source := v_row.source;
      target := v_row.target;
      attempts := v_row.attempts;
      outcome := core.outbox_give_up(v_row.id, v_row.occurred_at, null, reason, p_again);
      return next;
    end if;
    v_left := v_left - v_usable::integer;
    exit when v_left = 0 or outcome is not null and clock_timestamp() > v_start + interval '1 second';
  end loop;
end
$$;
create function core.outbox_poll(p_generation bigint, p_event_types text[],
  p_watermarks timestamptz[], p_held uuid[] default '{}', p_held_at timestamptz[] default '{}')
returns table (event_type text, oldest_due timestamptz, next_in double precision, crashed boolean)
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := clock_timestamp();
begin
  return query
    select t.event_type,
           (select o.available_at from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
              and o.status = 'pending' and o.deleted_at is null
              and o.available_at >= t.watermark and o.available_at <= v_now
              and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
              and (o.id <> all (p_held) or o.occurred_at <> all (p_held_at))
            order by o.available_at limit 1),
           extract(epoch from
             (select o.available_at from core.outbox o
              where o.generation = p_generation and o.event_type = t.event_type
                and o.status = 'pending' and o.deleted_at is null and o.available_at > v_now
                and not exists
                  (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
              order by o.available_at limit 1) - v_now)::double precision,
           coalesce((select true from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
                     and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
                     and o.available_at <= v_now
                     and not exists
                       (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
                     and (o.id <> all (p_held) or o.occurred_at <> all (p_held_at))
                     order by o.available_at limit 1), false)
    from unnest(p_event_types, p_watermarks) as t(event_type, watermark)
    where not exists
      (select from core.paused_types p where p.generation = p_generation and p.event_type = t.event_type);
end
$$;
create function core.outbox_barrier_poll(p_channels text[], p_generation bigint, p_event_types text[],
  p_watermarks timestamptz[], p_held uuid[] default '{}', p_held_at timestamptz[] default '{}')
returns table (passed boolean, event_type text, oldest_due timestamptz, next_in double precision, crashed boolean)
language plpgsql volatile set search_path = pg_catalog, core, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_passed boolean := true;
  v_channel text;
begin
  foreach v_channel in array coalesce(p_channels, '{}') loop
    v_passed := core.outbox_barrier(v_channel) and v_passed;
  end loop;
  return query
    select v_passed, p.event_type, p.oldest_due, p.next_in, p.crashed from (select) as once
    left join core.outbox_poll(p_generation, p_event_types, p_watermarks, p_held, p_held_at) as p on true;
end
$$;
create function core.outbox_watermark(p_generation bigint, p_event_type text,
  p_watermark timestamptz) returns table (oldest timestamptz, lowest_running bigint, sampled_at timestamptz,
    sample_id bigint)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'core.outbox_watermark: this transaction took its id before the time could be read'
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  sampled_at := clock_timestamp();
  sample_id := pg_current_xact_id()::text::bigint;
  select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
         (select o.available_at from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
            and o.status = 'pending' and o.deleted_at is null and o.available_at >= p_watermark
          order by o.available_at limit 1) into lowest_running, oldest;
  return next;
end
$$;
create function core.outbox_claim(p_generation bigint, p_event_type text, p_limit integer, p_watermark timestamptz,
  p_worker uuid, p_crashed boolean, p_kept_by timestamptz default null,
  p_probe text default null) returns table (event_id uuid, event_type text, event_version integer,
  occurred_at timestamptz, source text, target text, content_class text,
  workspace_id uuid, payload jsonb, idempotency_key text, trace_context text, attempts integer,
  available_at timestamptz, handler_failures jsonb, crashes integer, relayed boolean,
  replayed boolean, breakers text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_suspects constant uuid[] := coalesce(core.claim_suspects(p_worker), '{}');
  v_none_skipped constant boolean := v_suspects = '{}' and not exists (select from core.quarantined_events);
  v_breakers constant text[] := (select array_agg(b.handler_name) from core.breakers b
    where b.generation = p_generation and b.event_type = p_event_type and not b.closing);
  v_from timestamptz := p_watermark;
  v_to timestamptz := least(statement_timestamp(), p_kept_by);
  v_size bigint;
  v_bytes bigint := 0;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type) then
    return;
  end if;
  if p_probe is not null then -- the times of those that wait, which are far ahead, by their own index
    select min(w.available_at), max(w.available_at) into v_from, v_to
    from (select o.available_at from core.outbox o
      where o.generation = p_generation and o.waiting_for = p_probe and o.status = 'pending' and o.deleted_at is null
      order by o.available_at limit p_limit) w;
  end if;
  if p_crashed then
    return query
      select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
             case when core.payload_bytes(o.payload) + core.payload_bytes(o.handler_failures) > 0 then o.payload end,
             o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes,
             o.relayed_at is not null, o.failure_history <> '[]' and core.prior_replays(o.failure_history) > 0,
             v_breakers
      from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
        and o.available_at <= statement_timestamp() and o.id <> all (v_suspects)
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit for update of o skip locked;
    return;
  end if;
  breakers := v_breakers;
  for event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
      idempotency_key, trace_context, attempts, available_at, handler_failures, crashes, relayed, replayed,
      v_size in
    select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
           o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes,
           o.relayed_at is not null, o.failure_history <> '[]' and core.prior_replays(o.failure_history) > 0,
           case when pg_column_compression(o.payload) is null and pg_column_size(o.payload) <= 16384
             then pg_column_size(o.payload) else core.payload_bytes(o.payload) end
             + case when pg_column_size(o.handler_failures) <= 200 then 0
                 else core.payload_bytes(o.handler_failures) end
    from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
      and o.status = 'pending' and o.deleted_at is null
      and o.available_at >= v_from and o.available_at <= v_to and (p_probe is null or o.waiting_for = p_probe)
      and (p_kept_by is null or o.relayed_at is not null)
      and (o.crashes = 0 or p_probe is not null)
      and (v_none_skipped or o.id <> all (v_suspects) and not exists
        (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at))
    order by o.available_at limit p_limit for update of o skip locked loop
    return next;
    v_bytes := v_bytes + v_size;
    exit when v_bytes >= 16777216;
  end loop;
end
$$;
create function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_settled integer;
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  with written as
    (update core.outbox o set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
     where o.id = any (p_ids) and o.occurred_at between v_first and v_last
       and case when o.status = 'pending' and o.deleted_at is null
         then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
     returning o.status)
  select count(*) filter (where w.status = 'delivered') into v_settled from written w;
  return v_settled;
end
$$;
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
-- +goose StatementEnd
grant execute on function core.outbox_poll, core.outbox_barrier_poll, core.outbox_watermark, core.outbox_claim,
  core.outbox_deliver, core.outbox_retry, core.outbox_fail, core.outbox_give_up, core.outbox_isolate to spectral_worker;
grant execute on function core.payload_bytes to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.paused_types', 'core.quarantined_events');
drop function core.outbox_barrier_poll, core.outbox_poll, core.outbox_watermark, core.outbox_claim, core.outbox_deliver,
  core.outbox_retry, core.outbox_fail, core.outbox_isolate, core.outbox_give_up, core.row_fault,
  core.row_kept, core.error_text, core.payload_bytes;
drop table core.quarantined_events, core.paused_types;
