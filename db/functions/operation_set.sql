-- core.operation_set(p_operation, p_state, p_by) pauses, resumes (running) or aborts an operation, and returns the
-- state before. Events that it has replayed are not called back. A resumed operation takes no account of what has
-- failed before, and is not a canary any more. Refuses an unknown operation (SP031), one that is over (SP032) or in
-- that state (SP034), a malformed argument (SP030). Writes core.operations, core.operator_actions.
create function core.operation_set(p_operation uuid, p_state text, p_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_before text;
begin
  if p_state is null or p_state not in ('running', 'paused', 'aborted') then
    raise exception 'state: must be running, paused or aborted' using errcode = 'SP030', column = 'state';
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
    perform core.operator_action('operation_resume', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  elsif p_state = 'paused' then
    perform core.operator_action('operation_pause', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  else
    perform core.operator_action('operation_abort', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  end if;
  update core.operations o set state = p_state, state_at = clock_timestamp(), why = null,
    state_by = coalesce(btrim(p_by), session_user), stepped_at = clock_timestamp(),
    canary = case when p_state = 'running' then null else o.canary end,
    delivered_before = case when p_state = 'running' then o.delivered else o.delivered_before end,
    failed_before = case when p_state = 'running' then o.failed else o.failed_before end
  where o.id = p_operation;
  return v_before;
end
$$;
