-- core.relay_switch(p_path, p_switched_by) sets the path that events take (core.relay), from now on and for all
-- generations: when it has committed, no worker sends an event on another. Events that are relayed stay so until their
-- handlers have handled them. Returns the path until now. Refuses an unknown path (SP030), a blank name (SP030). Writes
-- core.relay, core.operator_actions.
create function core.relay_switch(p_path text, p_switched_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_before text;
begin
  if p_path is null or p_path not in ('postgres', 'both', 'jetstream') then
    raise exception 'path: % must be postgres, both or jetstream', coalesce(quote_literal(left(p_path, 200)), 'null')
      using errcode = 'SP030', column = 'path';
  end if;
  perform pg_advisory_xact_lock(4480265037518190933); -- until those who mark rows have committed
  select r.path into strict v_before from core.relay r;
  perform core.operator_action('relay_switch', p_switched_by, '{}', null,
    jsonb_build_object('path', p_path, 'before', v_before));
  update core.relay r set path = p_path, switched_at = clock_timestamp(),
    switched_by = coalesce(btrim(p_switched_by), session_user);
  return v_before;
end
$$;
