-- core.outbox_publish_event(...) publishes one event in the caller's transaction and returns its id, as
-- core.outbox_publish does, which calls it. The event may have an id and a time of the caller's own, and the event that
-- caused it. The Go publisher calls it too. Refusals: see core.outbox_check. Reads core.event_types,
-- core.publisher_sources, core.deployments, of which it locks a row at the higher isolation levels, and core.outbox for
-- an id of the caller's own; writes core.outbox.
create function core.outbox_publish_event(p_event_id uuid, p_occurred_at timestamptz, p_event_type text, p_source text,
  p_payload jsonb, p_event_version integer, p_target text, p_workspace_id uuid, p_idempotency_key text,
  p_trace_context text, p_available_at timestamptz, p_generation bigint, p_class text, p_content_class text,
  p_cause_id uuid default null)
returns uuid language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_invoker constant name := coalesce(nullif(current_setting('role'), 'none')::name, session_user);
  -- Transaction id, then generation: a publisher that saw the generation open has an id from before it was closed, and
  -- core.generation_retire waits for all of those. And id, then time, which the CASE takes in this order: a session
  -- that takes an id after a time knows that rows stamped before that time have lower ids, and so when all of them are
  -- visible or gone (core.outbox_watermark).
  v_now constant timestamptz := case when pg_current_xact_id() is not null then clock_timestamp() end;
  v_id uuid;
  v_generation bigint;
  v_channel text;
  v_published constant integer := coalesce(nullif(current_setting('spectral.published', true), ''), '0')::integer + 1;
  v_unused text;
begin
  insert into core.outbox
    (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
     workspace_id, payload, idempotency_key, trace_context, status, created_at, available_at, delivered_at,
     cause_id)
  select p.id, p_event_type, p_event_version, coalesce(p_occurred_at, v_now), p_source, p_target,
    coalesce(p_content_class, t.content_class),
    'outbox_gen_' || d.generation || coalesce('_' || coalesce(p_class, t.class), ''), d.generation,
    p_workspace_id, p_payload,
    -- a caller's own key is qualified, so that two sources or tenants never share one
    case when p_idempotency_key is null or p_idempotency_key = p.id::text then p.id::text
      else concat(p_source, ':', coalesce(p_workspace_id::text, '-'), ':', p_idempotency_key) end,
    p_trace_context,
    case when core.consumes(d.generation, t.consumed_in, t.consumed) then 'pending' else 'delivered' end,
    v_now, greatest(p_available_at, v_now),
    case when core.consumes(d.generation, t.consumed_in, t.consumed) then null else v_now end, p_cause_id
  from (select coalesce(p_event_id, core.uuid_v7()) as id, p_payload::text as text,
      exists (select from core.publisher_sources s where s.source = p_source
        and pg_has_role(v_invoker, to_regrole(quote_ident(s.role_name)), 'usage')) as allowed
    offset 0) as p -- each is computed once
  left join core.event_types t
    on t.event_type = p_event_type and t.event_version = p_event_version and t.source = p_source
  left join core.deployments d on d.status <> 'retired' and d.closed_at is null
    and d.generation = coalesce(p_generation,
      (select max(l.generation) from core.deployments l where l.status = 'live'))
  where p_event_id is null and t.event_type is not null and d.generation is not null and p.allowed
      and core.publishable(p_event_id, p_occurred_at, p_payload, p.text, p_target, p_workspace_id, p_idempotency_key,
        p_trace_context, p_available_at, p_class, p_content_class, t.payload_fault, t.deadline)
    or core.outbox_check(null, v_invoker, t.event_type is not null and d.generation is not null and p.allowed,
      p_event_id, p_occurred_at, p_event_type, p_source, p_payload, p_event_version, p_target, p_workspace_id,
      p_idempotency_key, p_trace_context, p_available_at, p_generation, p_class, p_content_class)
  returning id, generation, channel into v_id, v_generation, v_channel;
  if not found then
    raise exception 'a trigger on core.outbox discards events' using hint = '`workers doctor` names it';
  end if;
  -- a snapshot from before the generation was closed shows it open for as long as the transaction lasts: the lock is
  -- refused then (40001), and otherwise keeps it open until the end. Not at READ COMMITTED, whose producers would all
  -- write one row.
  if current_setting('transaction_isolation') not like 'read %' then
    perform from core.deployments d where d.generation = v_generation for share;
  end if;
  -- a transaction that publishes more than 100 events notifies here, and the trigger then stays out of the election:
  -- its long commit would keep the other publishers silent
  v_unused := set_config('spectral.published', v_published::text, true);
  if v_published > 100 and current_setting('spectral.notified_' || v_channel, true) is distinct from 'y' then
    v_unused := set_config('spectral.notified_' || v_channel, 'y', true);
    v_unused := pg_notify(v_channel, v_id::text);
  end if;
  return v_id;
end
$$;
