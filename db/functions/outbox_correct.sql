-- core.outbox_correct(p_event_id, p_payload, p_corrected_by, p_reason, p_occurred_at) publishes a copy of a failed
-- event with another payload, and discards the original for good. Returns the copy's id. The copy has the source,
-- target, workspace, class and cause of the original, a new id and key, and goes to the highest live generation.
-- Handlers that have handled the original do not run for it: what they did with the old payload stays.
--
-- Refuses what core.outbox_discard refuses, the payload of the original (SP034), and a payload or contract that
-- publishing refuses (core.outbox_check). Writes core.outbox, core.event_handled, core.operator_actions; reads
-- core.event_types, core.deployments, core.publisher_sources.
create function core.outbox_correct(p_event_id uuid, p_payload jsonb, p_corrected_by text default null,
  p_reason text default null, p_occurred_at timestamptz default null) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
  v_now constant timestamptz := case when pg_current_xact_id() is not null then clock_timestamp() end;
  v_old core.outbox;
  v_type core.event_types;
  v_generation constant bigint := (select max(d.generation) from core.deployments d where d.status = 'live');
  v_class text;
  v_id constant uuid := core.uuid_v7();
begin
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  v_occurred_at := core.operated_event('discard', p_event_id, p_occurred_at);
  select * into v_old from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  perform core.operated_event('discard', p_event_id, v_occurred_at);
  if p_payload = v_old.payload then
    raise exception 'payload: is that of event %', p_event_id
      using errcode = 'SP034', column = 'payload', hint = 'change it, or replay the event';
  end if;
  v_class := substring(v_old.channel from '^outbox_gen_[0-9]+_(.+)$');
  select * into v_type from core.event_types t where t.event_type = v_old.event_type
    and t.event_version = v_old.event_version and t.source = v_old.source;
  if v_generation is not null then perform core.generation_open(v_generation); end if;
  perform core.outbox_check(null, (select s.role_name from core.publisher_sources s where s.source = v_old.source
      order by s.role_name limit 1), v_type.event_type is not null and v_generation is not null, v_id, null,
    v_old.event_type, v_old.source, p_payload, v_old.event_version, v_old.target, v_old.workspace_id, null,
    v_old.trace_context, null, v_generation, v_class, v_old.content_class);
  insert into core.outbox (id, event_type, event_version, occurred_at, source, target, content_class, channel,
    generation, workspace_id, payload, idempotency_key, trace_context, status, created_at, available_at, delivered_at,
    cause_id, corrects)
  values (v_id, v_old.event_type, v_old.event_version, v_now, v_old.source, v_old.target, v_old.content_class,
    'outbox_gen_' || v_generation || coalesce('_' || v_class, ''), v_generation, v_old.workspace_id, p_payload,
    v_id::text, v_old.trace_context,
    case when core.consumes(v_generation, v_type.consumed_in, v_type.consumed) then 'pending' else 'delivered' end,
    v_now, v_now,
    case when core.consumes(v_generation, v_type.consumed_in, v_type.consumed) then null else v_now end,
    v_old.cause_id, v_old.id);
  insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class,
    handled_at, outcome, skipped_by)
  select h.handler_name, v_id::text, h.event_id, h.event_type, h.workspace_id, h.content_class, h.handled_at, h.outcome,
    h.skipped_by
  from core.event_handled h where h.idempotency_key = v_old.idempotency_key and h.event_type = v_old.event_type
    and h.handler_name = any (array(select k.handler_name from core.handlers k where k.event_type = v_old.event_type))
  order by h.handler_name;
  update core.outbox o set deleted_at = v_now, discarded_at = v_now, undiscarded_at = null,
    failure_history = core.failure_history_with(o.failure_history, jsonb_build_object('discarded_at', v_now,
      'discarded_by', coalesce(btrim(p_corrected_by), session_user), 'reason', btrim(p_reason), 'corrected_as', v_id))
  where o.id = v_old.id and o.occurred_at = v_old.occurred_at;
  perform core.operator_action('correct', p_corrected_by, array[v_old.id, v_id], v_generation,
    jsonb_build_object('corrected_as', v_id, 'reason', btrim(p_reason)));
  return v_id;
end
$$;
