-- core.retention_tombstone_operator_actions(p_after, p_limit) tombstones operators' actions that are expired, by their
-- time. A step of core.retention_sweep. Writes core.operator_actions.
create function core.retention_tombstone_operator_actions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_expired constant timestamptz := (core.retention_window('operator_action')).expired;
begin
  with due as (
    select a.id, a.acted_at from core.operator_actions a
    where a.acted_at between coalesce(p_after[1]::timestamptz, '-infinity') and v_expired and a.deleted_at is null
    order by a.acted_at limit p_limit for update skip locked),
  written as (
    update core.operator_actions a set deleted_at = clock_timestamp() where a.id = any (array(select d.id from due d)))
  select count(*), case when count(*) = p_limit then array[max(d.acted_at)::text] end into rows, next from due d;
  return next;
end
$$;
