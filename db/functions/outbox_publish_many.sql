-- core.outbox_publish_many(p_events) publishes a JSON array of events in the caller's transaction,
-- all or none, and returns their ids in order. An element has the parameters of
-- core.outbox_publish as fields, without p_, and may bring its own event_id and occurred_at; an
-- unknown field is refused (SP021). Malformed fields of any event are refused first, then two events of one id (SP020),
-- then the other faults in the order of the events. One jsonb argument, so that a later field changes no signature.
-- Writes core.outbox.
create function core.outbox_publish_many(p_events jsonb) returns uuid[]
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_fault text;
  v_field text;
  v_value jsonb;
  v_place integer;
begin
  if p_events is null or jsonb_typeof(p_events) <> 'array' then
    perform core.refuse('SP021', 'p_events', 'must be a JSON array of events', core.shown(p_events),
      'like [{"event_type": "worlds.scan.completed", "source": "worlds", "payload": {}}]', null);
  end if;
  select x.fault, x.field, x.value, x.place into v_fault, v_field, v_value, v_place
  from (select e.place, f.field, coalesce(f.value, e.event) as value,
      case when jsonb_typeof(e.event) <> 'object' then 'no object'
        else core.event_field_fault(f.field, f.value) end as fault
    from jsonb_array_elements(p_events) with ordinality as e(event, place)
    left join jsonb_each(case jsonb_typeof(e.event) when 'object' then e.event else '{}' end) as f(field, value) on true
    -- most events have these fields alone, which is seen in a third of the time
    where (case jsonb_typeof(e.event) when 'object' then e.event - array['payload', 'event_type', 'source'] end = '{}'
      and jsonb_typeof(e.event -> 'event_type') = 'string' and jsonb_typeof(e.event -> 'source') = 'string') is not true
    offset 0) as x
  where x.fault is not null limit 1;
  if v_fault = 'no object' then
    perform core.refuse('SP021', 'p_events', 'an event must be a JSON object', core.shown(v_value),
      'like {"event_type": "worlds.scan.completed", "source": "worlds", "payload": {}}', v_place);
  elsif v_fault = 'unknown' then
    perform core.refuse('SP021', 'p_events', 'an event has a field that is unknown', core.shown(to_jsonb(v_field)),
      'fields are the parameters of core.outbox_publish without p_, event_id and occurred_at', v_place);
  elsif v_fault is not null then
    perform core.refuse('SP021', v_field, v_fault, core.shown(v_value),
      E'core.outbox_publish shows the type of each parameter: \\df core.outbox_publish', v_place);
  end if;
  -- null instead of an array of nulls, which would take longer
  return (select core.outbox_publish_rows(
      case when count(e.event_id) > 0 then array_agg(e.event_id) end,
      case when count(e.occurred_at) > 0 then array_agg(e.occurred_at) end,
      coalesce(array_agg(e.event_type), '{}'), array_agg(e.source), array_agg(e.payload),
      array_agg(coalesce(e.event_version, 1)),
      case when count(e.target) > 0 then array_agg(e.target) end,
      case when count(e.workspace_id) > 0 then array_agg(e.workspace_id) end,
      case when count(e.idempotency_key) > 0 then array_agg(e.idempotency_key) end,
      case when count(e.trace_context) > 0 then array_agg(e.trace_context) end,
      case when count(e.available_at) > 0 then array_agg(e.available_at) end,
      case when count(e.generation) > 0 then array_agg(e.generation) end,
      case when count(e.class) > 0 then array_agg(e.class) end,
      case when count(e.content_class) > 0 then array_agg(e.content_class) end)
    from jsonb_to_recordset(p_events) as e(event_id uuid, occurred_at timestamptz, event_type text, source text,
      payload jsonb, event_version integer, target text, workspace_id uuid, idempotency_key text, trace_context text,
      available_at timestamptz, generation bigint, class text, content_class text));
end
$$;
