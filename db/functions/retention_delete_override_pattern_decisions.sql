-- platform.retention_delete_override_pattern_decisions(p_after, p_limit) deletes counted ids that are older than
-- handled keys are kept, with their grace, among the next p_limit by decision. A step of core.retention_sweep. Writes
-- platform.override_pattern_decisions.
create function platform.retention_delete_override_pattern_decisions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_gone constant timestamptz := (core.retention_window('event_handled')).gone;
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.decision_id) into v_ids
  from (select c.decision_id from platform.override_pattern_decisions c where c.decision_id > v_after
    order by c.decision_id limit p_limit) p;
  delete from platform.override_pattern_decisions c
  where c.ctid = any (array(select d.ctid from platform.override_pattern_decisions d
    where d.decision_id > v_after and d.decision_id <= v_ids[cardinality(v_ids)] and d.counted_at <= v_gone
    for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
