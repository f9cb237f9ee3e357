-- core.generation_announce(p_generation) is what a worker calls at its start: it records a new generation as live and
-- leaves the status of a known one. Returns that status. Idempotent. Refuses a retired one (SP019). Writes
-- core.deployments.
create function core.generation_announce(p_generation bigint) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_status text;
begin
  if p_generation is null or p_generation not between 1 and 999999999999 then
    raise exception 'generation: must be a number from 1 to 999999999999'
      using errcode = 'SP019', column = 'generation', detail = 'received ' || coalesce(p_generation::text, 'null');
  end if;
  insert into core.deployments (generation) values (p_generation) on conflict (generation) do nothing;
  select d.status into v_status from core.deployments d where d.generation = p_generation;
  if v_status = 'retired' then
    raise exception 'generation: % is retired', p_generation using errcode = 'SP019', column = 'generation',
      detail = 'received ' || p_generation,
      hint = 'deploy under a new, higher generation (SPECTRAL_GENERATION)';
  end if;
  return v_status;
end
$$;
