-- core.event_type_pause(p_event_type, p_generation, p_paused_by, p_reason) stops claims of an event type in a
-- generation, by builds of every age. Publishing goes on. Workers finish what they hold; what they then retry waits
-- too. Refuses a type that is not registered and malformed arguments (SP030), a generation that is unknown or retired
-- (SP019), and a type that is paused already (SP034). Writes core.paused_types, core.operator_actions; reads
-- core.event_types, core.deployments.
create function core.event_type_pause(p_event_type text, p_generation bigint, p_paused_by text default null,
  p_reason text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_paused core.paused_types;
begin
  if p_event_type is null or not exists (select from core.event_types t where t.event_type = p_event_type) then
    raise exception 'event_type: % is not registered', coalesce(quote_literal(left(p_event_type, 200)), 'null')
      using errcode = 'SP030', column = 'event_type', hint = 'select distinct event_type from core.event_types';
  end if;
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  perform core.generation_open(p_generation);
  perform core.operator_action('pause', p_paused_by, '{}', p_generation,
    jsonb_build_object('event_type', p_event_type, 'reason', btrim(p_reason)));
  insert into core.paused_types (event_type, generation, paused_by, reason)
  values (p_event_type, p_generation, coalesce(btrim(p_paused_by), session_user), btrim(p_reason))
  on conflict (generation, event_type) do nothing;
  if not found then
    select * into v_paused from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type;
    raise exception 'event_type: % is paused already in generation %, since % by %', p_event_type, p_generation,
      v_paused.paused_at, v_paused.paused_by using errcode = 'SP034', column = 'event_type',
      hint = format('`workers events resume %1$s --generation %2$s`, or: select core.event_type_resume(%1$L, %2$s)',
        p_event_type, p_generation);
  end if;
end
$$;
