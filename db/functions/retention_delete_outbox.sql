-- core.retention_delete_outbox(p_after, p_limit) deletes settled events whose tombstone is past the grace, by its time,
-- with their failed attempts. Also what core.quarantined_events says of rows that are settled or gone, groups of errors
-- that were not seen for so long and have no note, and, a part at each call, operations that ended so long ago. A step
-- of core.retention_sweep. Writes core.outbox, core.failed_attempts, core.quarantined_events, core.error_groups,
-- core.operations, core.operation_rows.
create function core.retention_delete_outbox(p_after text[], p_limit integer) returns table (rows bigint, next text[])
language plpgsql volatile as $$
declare
  v_over constant timestamptz := (core.retention_window('outbox_row')).grace_over;
  v_rows tid[];
  v_ids uuid[];
  v_ats timestamptz[];
  v_operation uuid;
begin
  select o.id into v_operation from core.operations o
  where o.state in ('done', 'aborted') and o.state_at <= (core.retention_window('outbox_row')).gone
  order by o.state_at limit 1;
  if found then
    delete from core.operation_rows r where r.operation_id = v_operation
      and r.n in (select k.n from core.operation_rows k where k.operation_id = v_operation
        order by k.n limit 10 * p_limit);
    if not found then delete from core.operations o where o.id = v_operation; end if;
  end if;
  if p_after is null then -- once in a sweep
    delete from core.error_groups g where g.note is null and coalesce(g.muted_until < clock_timestamp(), true)
      and g.last_seen < (core.retention_window('outbox_row')).expired - (clock_timestamp() - v_over);
    delete from core.quarantined_events q where not exists (select from core.outbox o
      where o.id = q.id and o.occurred_at = q.occurred_at and o.status in ('pending', 'in_flight')
        and o.deleted_at is null);
  end if;
  select array_agg(l.ctid), array_agg(l.id), array_agg(l.occurred_at),
    case when count(*) = p_limit then array[max(l.deleted_at)::text] end
  into v_rows, v_ids, v_ats, next from (select o.ctid, o.id, o.occurred_at, o.deleted_at from core.outbox o
        where o.deleted_at between coalesce(p_after[1]::timestamptz, '-infinity') and v_over
          and o.status in ('delivered', 'failed') order by o.deleted_at limit p_limit for update skip locked) l;
  -- the ids, too, because rows of two partitions may have the same ctid; the CASE keeps the condition from partial
  -- indexes
  delete from core.outbox o where o.ctid = any (v_rows) and o.id = any (v_ids)
    and case when o.deleted_at <= v_over then o.status in ('delivered', 'failed') else false end;
  get diagnostics rows = row_count;
  delete from core.failed_attempts f where f.event_id = any (v_ids)
    and (f.event_id, f.occurred_at) in (select * from unnest(v_ids, v_ats));
  return next;
end
$$;
