-- core.outbox_retry_now_many(p_event_ids, p_retried_by, p_occurred_ats) makes up to 1000 pending events due at once
-- that wait for a later time, after a failure or as they were scheduled, and lets workers try quarantined ones again:
-- what core.outbox_retry_now does to one. Which are passed over: core.operated_rows. A row that a worker holds is never
-- stamped again: its dispatch is known by the time it was due. Returns what is due now, and whether it was tried before
-- (core.tried) or is one that its producer scheduled. Refuses malformed arguments (SP030). Wakes each channel once.
-- Writes core.outbox, core.quarantined_events, core.operator_actions.
create function core.outbox_retry_now_many(p_event_ids uuid[], p_retried_by text default null,
  p_occurred_ats timestamptz[] default null) returns table (event_id uuid, occurred_at timestamptz, tried boolean)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_ids uuid[];
  v_ats timestamptz[];
  v_channels text[];
  v_tried boolean[];
begin
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('retry_now', p_event_ids, p_occurred_ats) r;
  with freed as
    (delete from core.quarantined_events q using unnest(v_ids, v_ats) as k(id, occurred_at)
     where q.id = k.id and q.occurred_at = k.occurred_at returning q.id, q.occurred_at),
  restamped as
    (update core.outbox o set available_at = clock_timestamp(), waiting_for = null
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
       and not exists (select from freed f where f.id = o.id and f.occurred_at = o.occurred_at)
     returning o.id, o.occurred_at, o.channel, core.tried(o.attempts, o.last_error) as tried),
  written as
    (select * from restamped
     union all
     select o.id, o.occurred_at, o.channel, true from freed f join core.outbox o using (id, occurred_at))
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}'),
    coalesce(array_agg(w.channel), '{}'), coalesce(array_agg(w.tried), '{}')
  into v_ids, v_ats, v_channels, v_tried from written w;
  return query select k.id, k.occurred_at, k.tried from unnest(v_ids, v_ats, v_tried) as k(id, occurred_at, tried);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('retry_now', p_retried_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
  perform pg_notify(n.channel, n.id::text)
  from (select distinct on (u.channel) u.channel, u.id from unnest(v_channels, v_ids) as u(channel, id)
    order by u.channel) n;
end
$$;
