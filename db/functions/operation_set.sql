-- core.operation_set(p_operation, p_state, p_by, p_canary, p_max_failed, p_rate, p_run, p_skip, p_goes_on) pauses,
-- resumes (running) or aborts an operation, and returns the state before. Events that it has replayed are not called
-- back. A resumed operation takes no account of what has failed before. It goes on with a canary that has not settled,
-- begins another one of p_canary events, or none; the other parameters replace what it had, if they are not null.
-- Refuses an unknown operation (SP031), one that is over (SP032) or in that state (SP034), a malformed argument
-- (SP030). Writes core.operations, core.operator_actions.
create function core.operation_set(p_operation uuid, p_state text, p_by text default null,
  p_canary integer default null, p_max_failed double precision default null, p_rate double precision default null,
  p_run text[] default null, p_skip text[] default null, p_goes_on boolean default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_before text;
  v_fault constant text := case
    when p_state is null or p_state not in ('running', 'paused', 'aborted')
      then 'state: must be running, paused or aborted'
    when p_canary < 1 then 'canary: must be at least 1'
    when not p_max_failed between 0 and 1 then 'max_failed: must be a share from 0 to 1'
    when not p_rate between 1e-6 and 1e9 then 'rate: must be 1e-6 to 1e9 events a second' end;
begin
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'SP030', column = split_part(v_fault, ':', 1);
  end if;
  select o.state into v_before from core.operations o where o.id = p_operation for update;
  if not found then
    raise exception 'operation: % is not in core.operations', coalesce(p_operation::text, 'null')
      using errcode = 'SP031', column = 'operation', hint = '`workers operations list` lists them';
  end if;
  if v_before in ('done', 'aborted') then
    raise exception 'operation %: is %', p_operation, v_before using errcode = 'SP032', column = 'operation',
      hint = 'begin another one for what is left';
  end if;
  if v_before = p_state then
    raise exception 'operation %: is % already', p_operation, v_before
      using errcode = 'SP034', column = 'operation', hint = 'there is nothing to do';
  end if;
  if p_state = 'running' then
    perform core.operator_action('operation_resume', p_by, '{}', null, jsonb_build_object('operation', p_operation,
      'canary', p_canary, 'run', p_run, 'skip', p_skip));
  elsif p_state = 'paused' then
    perform core.operator_action('operation_pause', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  else
    perform core.operator_action('operation_abort', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  end if;
  update core.operations o set state = p_state, state_at = clock_timestamp(), why = null,
    state_by = coalesce(btrim(p_by), session_user), stepped_at = clock_timestamp(),
    max_failed = coalesce(p_max_failed, o.max_failed), rate = coalesce(p_rate, o.rate),
    run = coalesce(p_run, o.run), skip = coalesce(p_skip, o.skip), goes_on = coalesce(p_goes_on, o.goes_on),
    canary = case when p_state <> 'running' then o.canary
      when p_canary is not null then o.acted + p_canary
      when o.acted < o.canary or exists (select from core.operation_rows r
        where r.operation_id = o.id and r.outcome = 'acted') then o.canary end,
    delivered_before = case when p_state = 'running' then o.delivered else o.delivered_before end,
    failed_before = case when p_state = 'running' then o.failed else o.failed_before end
  where o.id = p_operation;
  return v_before;
end
$$;
