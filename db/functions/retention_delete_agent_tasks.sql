-- platform.retention_delete_agent_tasks(p_after, p_limit) deletes finished tasks whose retain_until has passed, among
-- the next p_limit by primary key. A task that is not finished stays. A step of core.retention_sweep. Writes
-- platform.agent_tasks.
create function platform.retention_delete_agent_tasks(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.agent_task_id) into v_ids
  from (select t.agent_task_id from platform.agent_tasks t where t.agent_task_id > v_after
    order by t.agent_task_id limit p_limit) p;
  delete from platform.agent_tasks t
  where t.agent_task_id = any (array(select d.agent_task_id from platform.agent_tasks d
    where d.agent_task_id > v_after and d.agent_task_id <= v_ids[cardinality(v_ids)]
      and d.retain_until <= clock_timestamp() and d.status in ('succeeded', 'failed', 'cancelled')
    for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
