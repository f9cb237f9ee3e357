-- core.breaker_release(p_generation, p_handler, p_limit) makes due again what waits for a breaker that closes, or that
-- is not open, up to p_limit rows, the first first, and wakes the workers. When none is left, the breaker is closed.
-- Returns how many rows it made due. Writes core.outbox, core.breakers.
create function core.breaker_release(p_generation bigint, p_handler text, p_limit integer default 1000) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_channels text[];
  v_ids uuid[];
begin
  -- those that let rows wait have committed, and the next ones wait
  perform from core.breakers b where b.generation = p_generation and b.handler_name = p_handler for update;
  if exists (select from core.breakers b where b.generation = p_generation and b.handler_name = p_handler
             and not b.closing) then
    return 0;
  end if;
  with first as materialized
    (select o.id, o.occurred_at from core.outbox o
     where o.generation = p_generation and o.waiting_for = p_handler and o.status = 'pending' and o.deleted_at is null
     order by o.available_at limit least(p_limit, 10000) for update skip locked),
  written as
    (update core.outbox o set waiting_for = null, available_at = clock_timestamp()
     where o.id = any (array(select f.id from first f))
       and case when o.status = 'pending' then (o.id, o.occurred_at) in (select f.id, f.occurred_at from first f)
         else false end
     returning o.id, o.channel)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.channel), '{}') into v_ids, v_channels from written w;
  perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
    from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
  -- a row that a probe has locked is found the next time
  if cardinality(v_ids) = 0 and not exists (select from core.outbox o where o.generation = p_generation
       and o.waiting_for = p_handler and o.status = 'pending' and o.deleted_at is null) then
    delete from core.breakers b where b.generation = p_generation and b.handler_name = p_handler;
  end if;
  return cardinality(v_ids);
end
$$;
