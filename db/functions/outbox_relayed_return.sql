-- core.outbox_relayed_return(p_ids, p_occurred_ats) gives relayed rows back: they are pending and due again, and
-- handled like those that no broker has had. For a message that its handler did not handle, for whatever reason. It
-- waits for a transaction that is sending a row. Wakes the listeners at commit. Writes core.outbox.
create function core.outbox_relayed_return(p_ids uuid[], p_occurred_ats timestamptz[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_channel text;
  v_id uuid;
begin
  for v_channel, v_id in
    with written as
      (update core.outbox o set status = 'pending', relayed_at = coalesce(o.relayed_at, clock_timestamp()),
         available_at = case o.status when 'relayed' then clock_timestamp() else o.available_at end
       from unnest(p_ids, p_occurred_ats) as k(id, occurred_at)
       where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at and case
         when o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null then o.deleted_at is null end
       returning o.channel, o.id)
    select distinct on (w.channel) w.channel, w.id from written w order by w.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
end
$$;
