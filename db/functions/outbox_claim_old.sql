-- core.outbox_claim(p_generation, p_event_type, p_limit) claims up to p_limit due rows of one type
-- and generation for the caller's transaction (row-locked mode): they stay pending under its row
-- locks, and are free again when it ends. Rows that others hold are skipped. Nothing of a type that is paused. Locks core.outbox;
-- reads core.paused_types. Only builds of long ago call it.
create function core.outbox_claim(p_generation bigint, p_event_type text, p_limit integer)
returns table (
  event_id uuid, event_type text, event_version integer, occurred_at timestamptz, source text, target text,
  content_class text, workspace_id uuid, payload jsonb, idempotency_key text, trace_context text,
  attempts integer, available_at timestamptz, handler_failures jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  return query
    select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
           o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures
    from core.outbox o
    where o.generation = p_generation and o.event_type = p_event_type
      and o.status = 'pending' and o.deleted_at is null
      and o.available_at <= statement_timestamp()
      and not exists (select from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type)
    order by o.available_at
    limit p_limit
    for update skip locked;
end
$$;
grant execute on function core.outbox_claim(bigint, text, integer) to spectral_worker;
