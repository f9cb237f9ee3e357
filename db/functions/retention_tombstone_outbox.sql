-- core.retention_tombstone_outbox(p_after, p_limit) tombstones the expired events (core.outbox_expired) among the next
-- p_limit by primary key. A step of core.retention_sweep. Writes core.outbox.
create function core.retention_tombstone_outbox(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_window constant record := core.retention_window('outbox_row');
  v_after_id constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_after_at constant timestamptz := coalesce(p_after[2], '-infinity');
  v_ids uuid[];
  v_ats timestamptz[];
  v_last_id uuid;
  v_last_at timestamptz;
begin
  -- in the index alone: no row of the table is read that occurred too late to be expired
  select array_agg(k.id), array_agg(k.occurred_at) into v_ids, v_ats
  from (select o.id, o.occurred_at from core.outbox o where (o.id, o.occurred_at) > (v_after_id, v_after_at)
        order by o.id, o.occurred_at limit p_limit) k;
  v_last_id := v_ids[cardinality(v_ids)];
  v_last_at := v_ats[cardinality(v_ids)];
  update core.outbox o set deleted_at = clock_timestamp() where o.ctid = any (array(
      select e.ctid from core.outbox e
      where (e.id, e.occurred_at) > (v_after_id, v_after_at) and (e.id, e.occurred_at) <= (v_last_id, v_last_at)
        and e.occurred_at <= v_window.expired
        and core.outbox_expired(e.status, e.occurred_at, e.delivered_at, e.claimed_at, e.deleted_at, e.undiscarded_at,
              v_window.expired, v_window.grace_over) for update skip locked))
    -- once more, because rows of two partitions may have the same ctid
    and o.id between v_ids[1] and v_last_id
    and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired, v_window.grace_over);
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_last_id::text, v_last_at::text] end;
  return next;
end
$$;
