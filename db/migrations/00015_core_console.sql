-- What viewers may read, and corrected copies (docs/decisions/0025).
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

grant usage on schema core to spectral_viewer;
grant select (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
  workspace_id, idempotency_key, trace_context, status, attempts, last_error, handler_failures, crashes,
  failure_history, first_failed_at, created_at, available_at, claim_token, claimed_at, claimed_by, lease_seconds,
  lease_handler, relayed_at, delivered_at, discarded_at, undiscarded_at, deleted_at, cause_id, waiting_for, corrects)
  on core.outbox to spectral_viewer;
grant select on core.breakers, core.claim_journal, core.deployments, core.error_groups, core.event_handled,
  core.event_stats, core.event_types, core.failed_attempts, core.handlers, core.operation_rows, core.operations,
  core.operator_actions, core.paused_types, core.quarantined_events, core.relay, core.retention_policies, core.workers,
  core.live_workers, core.delivery_latencies, core.delivery_latency_hours to spectral_viewer;
grant execute on function core.consumes, core.failures_muted, core.generation_backlog, core.generation_handlers,
  core.generation_state, core.generation_status, core.outbox_adoptable, core.outbox_locked_by,
  core.outbox_replay_preview, core.outbox_replay_preview_many, core.payload_bytes, core.pending_types,
  core.prior_replays, core.relayed_types, core.retention_status, core.tried, core.unconsumed, core.uuid_v7_floor,
  core.worker_lock to spectral_viewer;

-- +goose StatementBegin
create function core.payload_masked(p_payload jsonb, p_sensitive text[]) returns jsonb language plpgsql immutable as $$
declare
  v_path text;
begin
  if p_sensitive is null then return '"masked: its contract is not registered"'; end if;
  foreach v_path in array p_sensitive loop
    p_payload := jsonb_set(p_payload, string_to_array(v_path, '.'), '"***"', false);
  end loop;
  return p_payload;
end
$$;
create function core.event_payload(p_event_id uuid, p_occurred_at timestamptz) returns text
language sql stable security definer set search_path = pg_catalog, core, pg_temp as $$
  select case
    when core.payload_bytes(o.payload, false) > 16777216 then '"more than 16 MiB as text: not shown"'
    when pg_has_role(coalesce(nullif(current_setting('role'), 'none')::name, session_user), 'spectral_payload_reader',
      'usage') then o.payload::text
    else core.payload_masked(o.payload, t.sensitive)::text end
  from core.outbox o
  left join core.event_types t on t.event_type = o.event_type and t.event_version = o.event_version
  where o.id = p_event_id and o.occurred_at = p_occurred_at
$$;
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
-- +goose StatementEnd
grant execute on function core.event_payload to spectral_viewer;
grant execute on function core.outbox_correct to spectral_corrector;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.payload_masked, core.event_payload, core.outbox_correct;
