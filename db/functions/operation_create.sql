-- core.operation_create(p_name, p_created_by, p_event_ids, p_occurred_ats, p_as_of, ...) makes an operation of a plan:
-- a replay into p_generation, or a discard, of exactly these events, at most 1,000,000, and returns its id. The other
-- parameters are columns of core.operations; p_rate is in events per second. core.operation_step carries it out.
-- Refuses malformed arguments (SP030), a generation that is unknown or retired (SP019). Writes core.operations,
-- core.operation_rows, core.operator_actions.
create function core.operation_create(p_name text, p_created_by text, p_event_ids uuid[],
  p_occurred_ats timestamptz[], p_as_of timestamptz, p_filter jsonb, p_plan text, p_generation bigint default null,
  p_force boolean default false, p_run text[] default '{}', p_skip text[] default '{}', p_reason text default null,
  p_rate double precision default 1000, p_canary integer default null, p_goes_on boolean default false,
  p_max_failed double precision default 1, p_batch integer default 200) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_id uuid;
  v_count constant integer := cardinality(p_event_ids);
  v_fault text := case
    when p_name is null or p_name not in ('replay', 'discard') then 'name: must be replay or discard'
    when (p_name = 'replay') <> (p_generation is not null) then 'generation: a replay has one, a discard none'
    when v_count is null or v_count not between 1 and 1000000 then 'event_ids: must be 1 to 1,000,000'
    when cardinality(p_occurred_ats) is distinct from v_count or array_position(p_event_ids, null) is not null
      or array_position(p_occurred_ats, null) is not null then 'occurred_ats: must be one for each event'
    when p_as_of is null or p_as_of > clock_timestamp() then 'as_of: must be a time that has passed'
    when not coalesce(p_rate between 1e-6 and 1e9, false) then 'rate: must be 1e-6 to 1e9 events a second'
    when p_batch is null or p_batch not between 1 and 1000 then 'batch: must be 1 to 1000'
    when p_canary < 1 then 'canary: must be at least 1'
    when not coalesce(p_max_failed between 0 and 1, false) then 'max_failed: must be a share from 0 to 1'
    when btrim(p_reason) = '' or octet_length(p_reason) > 1024 then 'reason: must be 1 to 1024 bytes, not blank'
    when btrim(p_created_by) = '' or octet_length(p_created_by) > 256 then 'created_by: must be 1 to 256 bytes' end;
begin
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'SP030', column = split_part(v_fault, ':', 1);
  end if;
  if p_generation is not null then perform core.generation_open(p_generation, false); end if;
  insert into core.operations (name, created_by, reason, filter, plan, as_of, generation, force, run, skip, rate, batch,
    canary, goes_on, max_failed, state_by,
    total)
  values (p_name, coalesce(btrim(p_created_by), session_user), btrim(p_reason), coalesce(p_filter, '{}'),
    left(p_plan, 200), p_as_of, p_generation, coalesce(p_force, false), coalesce(p_run, '{}'), coalesce(p_skip, '{}'),
    p_rate, p_batch, p_canary, coalesce(p_goes_on, false), p_max_failed,
    coalesce(btrim(p_created_by), session_user), v_count)
  returning id into v_id;
  insert into core.operation_rows (operation_id, n, event_id, occurred_at)
  select v_id, k.n, k.id, k.at from unnest(p_event_ids, p_occurred_ats) with ordinality as k(id, at, n);
  perform core.operator_action('operation_create', p_created_by, '{}', p_generation,
    jsonb_build_object('operation', v_id, 'name', p_name, 'events', v_count, 'plan', p_plan));
  return v_id;
end
$$;
