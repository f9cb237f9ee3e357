-- core.retention_delete_operator_actions(p_after, p_limit) deletes operators' actions whose tombstone is past the
-- grace, among the next p_limit by primary key. A step of core.retention_sweep. Writes core.operator_actions.
create function core.retention_delete_operator_actions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_over constant timestamptz := (core.retention_window('operator_action')).grace_over;
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.id) into v_ids
    from (select a.id from core.operator_actions a where a.id > v_after order by a.id limit p_limit) p;
  delete from core.operator_actions a where a.id = any (array(select d.id from core.operator_actions d
    where d.id > v_after and d.id <= v_ids[cardinality(v_ids)] and d.deleted_at <= v_over for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
