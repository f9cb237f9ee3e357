-- core.outbox_publish(...) publishes one event in the caller's transaction and returns its id.
-- Defaults: the highest live generation, the registered class and content class, due at once,
-- the event id as idempotency key. Refusals: see core.outbox_check. For producers in any
-- language; docs/producers.md shows it. Writes core.outbox.
create function core.outbox_publish(p_event_type text, p_source text, p_payload jsonb,
  p_event_version integer default 1, p_target text default null, p_workspace_id uuid default null,
  p_idempotency_key text default null, p_trace_context text default null, p_available_at timestamptz default null,
  p_generation bigint default null, p_class text default null, p_content_class text default null) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  return core.outbox_publish_event(null, null, p_event_type, p_source, p_payload, p_event_version, p_target,
    p_workspace_id, p_idempotency_key, p_trace_context, p_available_at, p_generation, p_class, p_content_class);
end
$$;
