-- core.outbox_wait(p_generation, p_handler, p_ids, p_occurred_ats, p_tokens) lets pending rows wait until the breaker
-- of a handler closes, the latest behind those that wait already: due in a thousand years, as no claim finds them then.
-- With p_tokens it settles rows in flight under them, and takes their attempt back. If the breaker is closed by now,
-- they are due at once, and their workers are woken. Returns the ids of the rows. Writes core.outbox; locks a row of
-- core.breakers until the transaction ends, so that core.breaker_release misses none.
create function core.outbox_wait(p_generation bigint, p_handler text, p_ids uuid[], p_occurred_ats timestamptz[],
  p_tokens uuid[] default null) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_open boolean;
  v_ids uuid[];
  v_channels text[];
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  perform from core.breakers b where b.generation = p_generation and b.handler_name = p_handler
    and not b.closing for share;
  v_open := found;
  with written as
    (update core.outbox o set status = 'pending', waiting_for = case when v_open then p_handler end,
      available_at = clock_timestamp() + case when v_open then interval '1000 years' else interval '0' end,
      attempts = greatest(o.attempts - case when o.status = 'in_flight' then 1 else 0 end, 0),
      claim_token = null, claimed_by = null, lease_handler = null
    where o.id = any (p_ids) and o.occurred_at between v_first and v_last
      and case when o.status = case when p_tokens is null then 'pending' else 'in_flight' end and o.deleted_at is null
        then (o.id, o.occurred_at, coalesce(o.claim_token, o.id)) in
          (select k.id, k.at, coalesce(k.token, k.id) from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, at, token))
        else false end
    returning o.id, o.channel)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.channel), '{}') into v_ids, v_channels from written w;
  if not v_open then
    perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
      from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
  end if;
  return query select unnest(v_ids);
end
$$;
