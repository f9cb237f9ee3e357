-- core.outbox_relayed_return(p_ids, p_occurred_ats) gives relayed rows back: they are pending and due again, and
-- handled like those that no broker has had. For a message that its handler did not handle, for whatever reason. It
-- waits for a transaction that is sending a row. A row that cannot be written stays as it is, and keeps no other.
-- Returns how many it gave back. Wakes the listeners at commit. Writes core.outbox.
create function core.outbox_relayed_return(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_returned integer := 0;
  v_channel text;
  v_id uuid;
  v_rows integer;
begin
  for v_channel, v_id, v_rows in
    with written as
      (update core.outbox o set status = 'pending', relayed_at = coalesce(o.relayed_at, clock_timestamp()),
         available_at = case o.status when 'relayed' then clock_timestamp() else o.available_at end
       from unnest(p_ids, p_occurred_ats) as k(id, occurred_at)
       where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at and case
         when o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null then o.deleted_at is null end
       returning o.channel, o.id, o.status)
    select w.channel, max(w.id::text), count(*) filter (where w.status = 'pending')
    from written w group by w.channel loop
    v_returned := v_returned + v_rows;
    perform pg_notify(v_channel, v_id::text);
  end loop;
  return v_returned;
exception
  when others then
    if cardinality(p_ids) <= 1 then return 0; end if;
    for v_rows in 1..cardinality(p_ids) loop
      v_returned := v_returned + core.outbox_relayed_return(p_ids[v_rows:v_rows], p_occurred_ats[v_rows:v_rows]);
    end loop;
    return v_returned;
end
$$;
