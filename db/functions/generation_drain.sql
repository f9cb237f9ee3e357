-- core.generation_drain(p_generation, p_drained_by, p_force) makes a live generation a draining one. Events that name
-- no generation go to the highest live one, from then on to another. Events that name this one are still accepted: its
-- producers continue, and its workers handle what comes. Returns 'draining'. Idempotent.
--
-- It does the same for a generation that is not registered but that unsettled events name: a worker that starts in
-- order to drain them must not make it live.
--
-- Refuses a generation that is unknown or retired (SP019) and, unless forced, the only live one (SP041): until another
-- is live, events that name no generation would be refused (SP019). Writes core.deployments, core.operator_actions;
-- reads core.outbox.
create function core.generation_drain(p_generation bigint, p_drained_by text default null,
  p_force boolean default false) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_live bigint[];
  v_status text;
begin
  -- all live ones, so that two concurrent drains cannot both leave the other as the last one
  select array_agg(l.generation) into v_live
  from (select d.generation from core.deployments d where d.status = 'live' order by d.generation for update) as l;
  if p_generation = any (v_live) then
    if cardinality(v_live) = 1 and p_force is not true then
      raise exception 'generation: % is the only live one', p_generation
        using errcode = 'SP041', column = 'generation',
              detail = 'without a live one, publishing from SQL that names no generation is refused (SP019)',
              hint = 'start the workers of the next generation first, or force it: --force, or p_force => true';
    end if;
    update core.deployments d set status = 'draining', draining_at = clock_timestamp()
      where d.generation = p_generation;
    perform core.operator_action('generation_drain', p_drained_by, p_generation => p_generation,
      p_details => jsonb_build_object('forced', case when cardinality(v_live) = 1 then true end));
    return 'draining';
  end if;
  select d.status into v_status from core.deployments d where d.generation = p_generation;
  if v_status = 'draining' then return v_status; end if;
  if v_status is null and exists (select from core.generation_backlog(p_generation)) then
    insert into core.deployments (generation, status, draining_at) values (p_generation, 'draining', clock_timestamp())
    on conflict do nothing;
    if not found then -- another session has registered it in that time
      return core.generation_drain(p_generation, p_drained_by, p_force);
    end if;
    perform core.operator_action('generation_drain', p_drained_by, p_generation => p_generation,
      p_details => jsonb_build_object('was', 'not registered'));
    return 'draining';
  end if;
  raise exception 'generation: % is %', coalesce(p_generation::text, 'null'), coalesce(v_status, 'not registered')
    using errcode = 'SP019', column = 'generation', hint = '`workers generation status` lists them';
end
$$;
