-- core.outbox_publish_many(p_events) publishes a JSON array of events in the caller's transaction,
-- all or none, and returns their ids in order. An element has the parameters of
-- core.outbox_publish as fields, without p_, and may bring its own event_id and occurred_at; an
-- unknown field is refused (SP021). One jsonb argument, so that a later field changes no
-- signature that an older build calls. Writes core.outbox.
create function core.outbox_publish_many(p_events jsonb) returns uuid[]
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_event jsonb;
  v_position integer := 0;
  v_ids uuid[] := '{}';
  v_field text;
  v_kind text;
begin
  if p_events is null or jsonb_typeof(p_events) <> 'array' then
    perform core.refuse('SP021', 'p_events', 'must be a JSON array of events', core.shown(p_events),
      'like [{"event_type": "worlds.scan.completed", "source": "worlds", "payload": {}}]', null);
  end if;
  for v_event in select e from jsonb_array_elements(p_events) as e loop
    v_position := v_position + 1;
    if jsonb_typeof(v_event) <> 'object' then
      perform core.refuse('SP021', 'p_events', 'an event must be a JSON object', core.shown(v_event),
        'like {"event_type": "worlds.scan.completed", "source": "worlds", "payload": {}}', v_position);
    end if;
    for v_field, v_kind in select k, jsonb_typeof(v) from jsonb_each(v_event) as f(k, v) loop
      if v_field not in ('event_id', 'event_type', 'event_version', 'occurred_at', 'source', 'target', 'workspace_id',
          'payload', 'idempotency_key', 'trace_context', 'available_at', 'generation', 'class', 'content_class') then
        perform core.refuse('SP021', 'p_events', 'an event has a field that is unknown', core.shown(to_jsonb(v_field)),
          'fields are the parameters of core.outbox_publish without p_, event_id and occurred_at', v_position);
      end if;
      if v_field = 'payload' or v_kind = 'null' then
        continue;
      elsif v_field in ('event_type', 'source', 'target', 'idempotency_key', 'trace_context', 'class', 'content_class')
        then
        continue when v_kind = 'string';
      elsif v_field in ('event_version', 'generation') then
        continue when v_kind = 'number' and v_event ->> v_field ~ '^-?[0-9]{1,9}$';
        continue when v_field = 'generation' and v_kind = 'number' and v_event ->> v_field ~ '^[0-9]{1,18}$';
      elsif v_field in ('event_id', 'workspace_id') then
        continue when v_kind = 'string'
          and v_event ->> v_field ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$';
      else -- occurred_at, available_at: only what the cast below takes
        continue when v_kind = 'string'
          and v_event ->> v_field ~ '^(?!0000)[0-9]{4}-'
            '((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)'
            '[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]'
            '(\.[0-9]{1,9})?(Z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)$'
          and (v_event ->> v_field !~ '^....-02-29'
            or extract(day from make_date(left(v_event ->> v_field, 4)::integer, 3, 1) - 1) = 29);
      end if;
      perform core.refuse('SP021', v_field, case
          when v_field in ('event_version', 'generation') then 'must be a whole number'
          when v_field in ('event_id', 'workspace_id') then 'must be a UUID'
          when v_field in ('occurred_at', 'available_at') then 'must be a time as in RFC 3339, with a zone'
          else 'must be a string' end,
        core.shown(v_event -> v_field),
          'core.outbox_publish shows the type of each parameter: \df core.outbox_publish', v_position);
    end loop;
    v_ids := v_ids || core.outbox_insert(
      v_position, (v_event ->> 'event_id')::uuid, v_event ->> 'event_type',
        coalesce((v_event ->> 'event_version')::integer, 1),
      (v_event ->> 'occurred_at')::timestamptz, v_event ->> 'source', v_event ->> 'target',
      (v_event ->> 'workspace_id')::uuid, v_event -> 'payload', v_event ->> 'idempotency_key',
      v_event ->> 'trace_context', (v_event ->> 'available_at')::timestamptz, (v_event ->> 'generation')::bigint,
      v_event ->> 'class', v_event ->> 'content_class');
  end loop;
  return v_ids;
end
$$;
