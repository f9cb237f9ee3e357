-- core.publishable(...) says whether an event, whose type, source and generation were found, is right at first sight:
-- false or null sends it to core.outbox_check, which says what is wrong, if anything is. p_text is the payload as text,
-- the last two parameters are of core.event_types. One expression without a subquery, so that Postgres puts it into
-- the statements of its callers: a call would cost more than all of its conditions.
create function core.publishable(p_event_id uuid, p_occurred_at timestamptz, p_payload jsonb, p_text text,
  p_target text, p_workspace_id uuid, p_idempotency_key text, p_trace_context text, p_available_at timestamptz,
  p_class text, p_content_class text, p_payload_fault jsonpath, p_deadline timestamptz) returns boolean
language sql volatile as $$
  select (p_event_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) is not true
    -- adding hours is faster than days, which depend on the time zone; the last hours are left to core.outbox_check
    and (p_occurred_at between '2000-01-01 00:00:00+00' and clock_timestamp() + interval '20 hours') is not false
    and jsonb_typeof(p_payload) = 'object'
    and octet_length(p_text) <= 1048576
    and (octet_length(p_text) <= 64 or octet_length(p_text) - octet_length(translate(p_text, '{[', '')) <= 64)
    and (octet_length(p_text) <= 309 or p_text !~ '[0-9.]{255}[0-9.]{54}')
    and (p_payload_fault is null or not jsonb_path_exists(p_payload, p_payload_fault)
      and (strpos(p_text, '.0') = 0 or p_text !~ '[0-9][.]0*[],}]'))
    and (p_target in ('platform', 'worlds', 'core')) is not false
    and (p_workspace_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) is not true
    and (octet_length(p_idempotency_key) between 1 and 512 and p_idempotency_key ~ '[!-~]') is not false
    and (p_trace_context ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$') is not false
    and (p_available_at > '-infinity' and p_available_at <= clock_timestamp() + interval '8760 hours') is not false
    and (p_class ~ '^[a-z][a-z0-9_]{0,29}$') is not false
    and (p_content_class in ('operational', 'workspace')) is not false
    and p_deadline is null
$$;
