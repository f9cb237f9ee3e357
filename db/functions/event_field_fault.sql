-- core.event_field_fault(p_field, p_value) says why a field of an event in core.outbox_publish_many's argument cannot
-- be cast to the type of its parameter: what it must be, or 'unknown' of an unknown field. Null if it can.
create function core.event_field_fault(p_field text, p_value jsonb) returns text language sql immutable as $$
  select case
    when p_field = 'payload' then null
    when p_field not in ('event_id', 'event_type', 'event_version', 'occurred_at', 'source', 'target', 'workspace_id',
      'idempotency_key', 'trace_context', 'available_at', 'generation', 'class', 'content_class')
      then 'unknown'
    when p_value = 'null' then null
    when p_field in ('event_version', 'generation') then
      case when jsonb_typeof(p_value) = 'number' and (p_value #>> '{}' ~ '^-?[0-9]{1,9}$'
        or p_field = 'generation' and p_value #>> '{}' ~ '^[0-9]{1,18}$') then null else 'must be a whole number' end
    when p_field in ('event_id', 'workspace_id') then
      case when jsonb_typeof(p_value) = 'string'
        and p_value #>> '{}' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        then null else 'must be a UUID' end
    when p_field in ('occurred_at', 'available_at') then
      -- only what the cast takes
      case when jsonb_typeof(p_value) = 'string'
        and p_value #>> '{}' ~ ('^(?!0000)[0-9]{4}-'
          || '((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)'
          || '[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)$')
        and (p_value #>> '{}' !~ '^....-02-29'
          or extract(day from make_date(left(p_value #>> '{}', 4)::integer, 3, 1) - 1) = 29)
        then null else 'must be a time as in RFC 3339, with a zone' end
    when jsonb_typeof(p_value) <> 'string' then 'must be a string' end
$$;
