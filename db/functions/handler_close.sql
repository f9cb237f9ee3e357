-- core.handler_close(p_generation, p_handler, p_closed_by) closes the breaker of a handler, also one that an operator
-- opened. What waits is made due by core.breaker_release, which the caller or a worker calls. Refuses a breaker that is
-- not open (SP034), a blank name (SP030). Writes core.breakers, core.operator_actions.
create function core.handler_close(p_generation bigint, p_handler text, p_closed_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  update core.breakers b set closing = true, forced = false
  where b.generation = p_generation and b.handler_name = p_handler;
  if not found then
    raise exception 'handler %: its breaker is not open in generation %',
      coalesce(quote_literal(left(p_handler, 200)), 'null'), p_generation
      using errcode = 'SP034', column = 'handler', hint = '`workers handlers list` lists those that are';
  end if;
  perform core.operator_action('handler_close', p_closed_by, '{}', p_generation,
    jsonb_build_object('handler', p_handler));
end
$$;
