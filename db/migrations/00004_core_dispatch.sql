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

-- +goose StatementBegin
create function core.outbox_poll(p_generation bigint, p_event_types text[],
  p_watermarks timestamptz[]) returns table (event_type text, oldest_due timestamptz, next_in double precision,
  crashed boolean)
language sql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select t.event_type,
         (select o.available_at from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
            and o.status = 'pending' and o.deleted_at is null
            and o.available_at >= t.watermark and o.available_at <= statement_timestamp()
          order by o.available_at limit 1),
         extract(epoch from
           (select o.available_at from core.outbox o
            where o.generation = p_generation and o.event_type = t.event_type
              and o.status = 'pending' and o.deleted_at is null and o.available_at > statement_timestamp()
            order by o.available_at limit 1) - statement_timestamp())::double precision,
         exists (select from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
                   and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
                   and o.available_at <= statement_timestamp())
  from unnest(p_event_types, p_watermarks) as t(event_type, watermark)
  where not exists (select from core.paused_types p where p.generation = p_generation and p.event_type = t.event_type)
$$;
create function core.outbox_watermark(p_generation bigint, p_event_type text,
  p_watermark timestamptz) returns table (oldest timestamptz, lowest_running bigint, sampled_at timestamptz,
    sample_id bigint)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
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
  p_worker uuid, p_crashed boolean) returns table (event_id uuid, event_type text, event_version integer,
  occurred_at timestamptz, source text, target text, content_class text, workspace_id uuid, payload jsonb,
  idempotency_key text, trace_context text, attempts integer, available_at timestamptz, handler_failures jsonb,
  crashes integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  v_suspects uuid[];
  v_size bigint;
  v_bytes bigint := 0;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type) then
    return;
  end if;
  v_suspects := core.claim_suspects(p_worker);
  if p_crashed then
    return query
      select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
             o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes
      from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
        and o.available_at <= statement_timestamp() and (v_suspects is null or o.id <> all (v_suspects))
      order by o.available_at limit p_limit for update skip locked;
    return;
  end if;
  for event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
      idempotency_key, trace_context, attempts, available_at, handler_failures, crashes, v_size in
    select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
           o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes,
           case when pg_column_compression(o.payload) is null then pg_column_size(o.payload)
             else octet_length(o.payload::text) end
    from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
      and o.status = 'pending' and o.deleted_at is null
      and o.available_at >= p_watermark and o.available_at <= statement_timestamp() and o.crashes = 0
      and (v_suspects is null or o.id <> all (v_suspects)) order by o.available_at limit p_limit
    for update skip locked loop
    return next;
    v_bytes := v_bytes + v_size;
    exit when v_bytes >= 16777216;
  end loop;
end
$$;
create function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_settled integer;
  v_from timestamptz;
  v_to timestamptz;
begin
  select min(t), max(t) into v_from, v_to from unnest(p_occurred_ats) as t;
  update core.outbox o set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
  where o.id = any (p_ids) and o.occurred_at between v_from and v_to
    and case when o.status = 'pending' then o.deleted_at is null else false end;
  get diagnostics v_settled = row_count;
  return v_settled;
end
$$;
create function core.outbox_retry(p_id uuid, p_occurred_at timestamptz, p_available_at timestamptz,
  p_delay double precision, p_last_error text, p_handler_failures jsonb, p_counted boolean) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_channel text;
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
      last_error = p_last_error, handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at;
  perform pg_notify(v_channel, p_id::text);
  return true;
end
$$;
create function core.outbox_fail(p_id uuid, p_occurred_at timestamptz, p_available_at timestamptz, p_last_error text,
  p_handler_failures jsonb) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
begin
  perform from core.outbox o
  where o.id = p_id and o.occurred_at = p_occurred_at and o.status = 'pending' and o.deleted_at is null
    and o.available_at = p_available_at for update;
  if not found then return false; end if;
  update core.outbox o set status = 'failed', attempts = o.attempts + 1, claimed_at = clock_timestamp(),
      last_error = p_last_error, handler_failures = p_handler_failures,
      first_failed_at = coalesce(o.first_failed_at, clock_timestamp())
  where o.id = p_id and o.occurred_at = p_occurred_at;
  return true;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_poll, core.outbox_watermark, core.outbox_claim, core.outbox_deliver,
  core.outbox_retry, core.outbox_fail to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.paused_types');
drop function core.outbox_poll, core.outbox_watermark, core.outbox_claim, core.outbox_deliver,
  core.outbox_retry, core.outbox_fail;
drop table core.paused_types;
