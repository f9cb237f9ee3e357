-- core.generation_register(p_generation, p_registered_by) is an operator's act: it records a new generation as live,
-- and makes a draining one live again, which ends its retiring (a rollback). Returns 'live'. Idempotent. Refuses a
-- retired one and a number out of range (SP019). Writes core.deployments and, if anything changed,
-- core.operator_actions.
create function core.generation_register(p_generation bigint, p_registered_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_new constant boolean := not exists (select from core.deployments d where d.generation = p_generation);
  v_status constant text := core.generation_announce(p_generation);
begin
  update core.deployments d
  set status = 'live', draining_at = null, closed_at = null, closed_xid = null, closed_bound = null
  where d.generation = p_generation and d.status = 'draining';
  if found or v_new then
    perform core.operator_action('generation_register', p_registered_by, p_generation => p_generation,
      p_details => jsonb_build_object('was', case when not v_new then v_status end));
  end if;
  -- another session may have retired it since
  return core.generation_announce(p_generation);
end
$$;
