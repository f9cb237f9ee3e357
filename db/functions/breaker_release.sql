-- core.breaker_release(p_generation, p_handler, p_limit) makes due again what waits for a breaker that closes, or that
-- is not open, up to p_limit rows, the first first, and wakes the workers. When none is left, the breaker is closed.
-- Returns how many rows it made due. A row that cannot be written is given up (core.outbox_give_up). Writes
-- core.outbox, core.breakers, core.quarantined_events.
create function core.breaker_release(p_generation bigint, p_handler text, p_limit integer default 1000) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_channels text[];
  v_ids uuid[];
  v_ats timestamptz[];
begin
  -- those that let rows wait have committed, and the next ones wait
  perform from core.breakers b where b.generation = p_generation and b.handler_name = p_handler for update;
  if exists (select from core.breakers b where b.generation = p_generation and b.handler_name = p_handler
             and not b.closing) then
    return 0;
  end if;
  select coalesce(array_agg(f.id), '{}'), coalesce(array_agg(f.occurred_at), '{}'), coalesce(array_agg(f.channel), '{}')
  into v_ids, v_ats, v_channels from (select o.id, o.occurred_at, o.channel from core.outbox o
    where o.generation = p_generation and o.waiting_for = p_handler and o.status = 'pending' and o.deleted_at is null
      and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
    order by o.available_at limit least(p_limit, 10000) for update skip locked) f;
  begin
    update core.outbox o set waiting_for = null, available_at = clock_timestamp()
    where o.id = any (v_ids)
      and case when o.status = 'pending' then (o.id, o.occurred_at) in (select * from unnest(v_ids, v_ats))
        else false end;
  exception when others then
    if not core.row_fault(sqlstate) then raise; end if;
    for n in 1..cardinality(v_ids) loop -- one that cannot be written must not keep the others
      begin
        update core.outbox o set waiting_for = null, available_at = clock_timestamp()
        where o.id = v_ids[n] and o.occurred_at = v_ats[n];
      exception when others then
        if not core.row_fault(sqlstate) then raise; end if;
        perform core.outbox_give_up(v_ids[n], v_ats[n], null, sqlstate || ': ' || sqlerrm);
      end;
    end loop;
  end;
  perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
    from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
  -- a row that a probe has locked is found the next time
  if cardinality(v_ids) = 0 and not exists (select from core.outbox o where o.generation = p_generation
       and o.waiting_for = p_handler and o.status = 'pending' and o.deleted_at is null
       and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)) then
    delete from core.breakers b where b.generation = p_generation and b.handler_name = p_handler;
  end if;
  return cardinality(v_ids);
end
$$;
