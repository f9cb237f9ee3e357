-- core.retention_tombstone_event_handled(p_after, p_limit) tombstones the expired keys (core.event_handled_expired)
-- among the next p_limit by primary key. A tombstone forgets nothing: handlers find the key taken until it is deleted.
-- A step of core.retention_sweep. Writes core.event_handled; reads core.outbox.
create function core.retention_tombstone_event_handled(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_expired constant timestamptz := (core.retention_window('event_handled')).expired;
  v_handlers text[];
  v_keys text[];
  v_due tid[];
begin
  select array_agg(p.handler_name), array_agg(p.idempotency_key), array_agg(p.ctid) filter (where p.due)
  into v_handlers, v_keys, v_due from (select h.handler_name, h.idempotency_key, h.ctid,
               core.event_handled_expired(h.event_id, h.idempotency_key, h.handled_at, h.deleted_at, v_expired) as due
        from core.event_handled h
        where (h.handler_name, h.idempotency_key) > (coalesce(p_after[1], ''), coalesce(p_after[2], ''))
        order by h.handler_name, h.idempotency_key limit p_limit) p;
  update core.event_handled h set deleted_at = clock_timestamp()
  where h.ctid = any (array(select d.ctid from core.event_handled d where d.ctid = any (v_due) for update skip locked))
    and core.event_handled_expired(h.event_id, h.idempotency_key, h.handled_at, h.deleted_at, v_expired);
  get diagnostics rows = row_count;
  next := case when cardinality(v_keys) = p_limit then array[v_handlers[p_limit], v_keys[p_limit]] end;
  return next;
end
$$;
