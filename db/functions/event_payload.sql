-- core.event_payload(p_event_id, p_occurred_at) returns the payload of an event as text; masked (core.payload_masked),
-- unless the role that is set, or else the login, is a member of spectral_payload_reader. Null: there is no such event.
-- Reads core.outbox, core.event_types.
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
