-- core.retention_delete_event_handled(p_after, p_limit) deletes handled keys whose tombstone is past the grace, by its
-- time. A key that an event carries again (core.key_in_outbox) loses its tombstone instead. A step of
-- core.retention_sweep. Writes core.event_handled; reads core.outbox.
create function core.retention_delete_event_handled(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_over constant timestamptz := (core.retention_window('event_handled')).grace_over;
  v_rows tid[];
  v_back tid[];
begin
  select array_agg(l.ctid) filter (where not l.back), array_agg(l.ctid) filter (where l.back),
         case when count(*) = p_limit then array[max(l.deleted_at)::text] end into v_rows, v_back, next
  from (select h.ctid, h.deleted_at, core.key_in_outbox(h.event_id, h.idempotency_key) as back from core.event_handled h
        where h.deleted_at between coalesce(p_after[1]::timestamptz, '-infinity') and v_over
        order by h.deleted_at limit p_limit for update skip locked) l;
  update core.event_handled h set deleted_at = null where h.ctid = any (v_back);
  delete from core.event_handled h where h.ctid = any (v_rows) and case when h.deleted_at <= v_over then true
    else false end;
  get diagnostics rows = row_count;
  return next;
end
$$;
