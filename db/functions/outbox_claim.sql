-- core.outbox_claim(p_generation, p_event_type, p_limit, p_watermark, p_worker, p_crashed, p_kept_by, p_probe) claims
-- up to p_limit due rows of one type and generation for the caller's transaction (row-locked mode): they stay pending
-- under its row locks, and are free again when it ends. With p_crashed it claims only rows with crashes, otherwise only
-- rows without. It skips rows that others have locked, those of core.claim_suspects and quarantined ones. It does not
-- look for rows available before p_watermark, and claims nothing of a paused type. It claims at most 16 MiB of payload
-- and one row, because all are in memory at once. Relayed: it was sent to a broker before; with p_kept_by it claims
-- only those, as far as they were due by then. With p_probe it claims rows that wait for the breaker of that handler.
-- Breakers: the handlers of the type whose breakers are open. Locks core.outbox; reads core.paused_types,
-- core.breakers, core.quarantined_events and what core.claim_suspects reads.
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
  -- nearly always; a row that is quarantined in this moment may still be claimed once more
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
  -- not in the queries: there it would cost a little for each row
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
  -- a loop fetches, and so locks, little more than it returns
  for event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
      idempotency_key, trace_context, attempts, available_at, handler_failures, crashes, relayed, replayed,
      v_size in
    select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
           o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes,
           o.relayed_at is not null, o.failure_history <> '[]' and core.prior_replays(o.failure_history) > 0,
           -- what is small and not compressed cannot be long
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
