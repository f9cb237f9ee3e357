-- core.handler_trip(p_generation, p_handler, p_tripped_by, p_reason) opens the breaker of a handler until
-- core.handler_close: its events wait, without probes. Refuses a handler that no worker of the generation has
-- registered (SP031), one whose breaker an operator has opened (SP034), a blank name or reason (SP030). Writes
-- core.breakers, core.operator_actions; reads core.handlers.
create function core.handler_trip(p_generation bigint, p_handler text, p_tripped_by text default null,
  p_reason text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_type text := (select min(h.event_type) from core.handlers h
    where h.generation = p_generation and h.handler_name = p_handler);
begin
  if btrim(p_reason) = '' or octet_length(p_reason) > 1000 then
    raise exception 'reason: must be 1 to 1000 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  if v_type is null then
    raise exception 'handler: no worker of generation % has registered %', p_generation,
      coalesce(quote_literal(left(p_handler, 200)), 'null')
      using errcode = 'SP031', column = 'handler', hint = '`workers handlers list` lists them';
  end if;
  perform core.operator_action('handler_trip', p_tripped_by, '{}', p_generation,
    jsonb_build_object('handler', p_handler, 'reason', btrim(p_reason)));
  insert into core.breakers as b (generation, handler_name, event_type, cause, opened_by, forced)
  values (p_generation, p_handler, v_type, coalesce(btrim(p_reason), 'by an operator'),
    coalesce(btrim(p_tripped_by), session_user), true)
  on conflict (generation, handler_name) do update
  set forced = true, closing = false, cause = excluded.cause, opened_by = excluded.opened_by,
    opened_at = excluded.opened_at where not b.forced;
  if not found then
    raise exception 'handler %: its breaker is open already, by an operator', p_handler
      using errcode = 'SP034', column = 'handler', hint = 'there is nothing to do';
  end if;
end
$$;
