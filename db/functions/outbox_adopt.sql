-- core.outbox_adopt(p_from, p_to, p_limit, p_adopted_by, p_event_types, p_before) moves up to p_limit pending events of
-- one generation into another: of the given types or of all, type by type, the first due of each first. Generation and
-- channel change, the processing class stays, and the listeners are notified. Returns how many. Call it, each time in a
-- transaction, until it returns 0. While p_from still gets events it may never return 0: with p_before, a time, it
-- moves only events that were created before. It leaves what a worker has locked or in flight, what is quarantined, and
-- failed events, which core.outbox_replay moves.
--
-- Due events become due again, in the same order within their type, and scheduled events keep their time: the workers
-- of p_to do not look for events that are due from before their watermark (core.outbox_watermark). Counts stay
-- (attempts, handler_failures, crashes), because the cycle goes on with other workers; handlers with other names start
-- at none. What a dead worker held is reaped first if the worker has been gone for two seconds (core.outbox_reap), and
-- is otherwise left: call again. Relayed events are given back first (core.outbox_relayed_return).
--
-- Refuses a malformed argument (SP030) and what core.adoption_check refuses. Warns about a live p_from, because its own
-- workers compete. Writes core.outbox, core.operator_actions and what core.outbox_reap writes.
create function core.outbox_adopt(p_from bigint, p_to bigint, p_limit integer default 1000,
  p_adopted_by text default null, p_event_types text[] default null, p_before timestamptz default null) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_now constant timestamptz := clock_timestamp();
  v_suspects uuid[];
  v_type text;
  v_row record;
  v_ids uuid[] := '{}';
  v_occurred_ats timestamptz[] := '{}';
  v_channel text;
  v_id uuid;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'limit: % must be from 1 to 10000', coalesce(p_limit::text, 'null') using errcode = 'SP030',
      column = 'limit';
  end if;
  if core.adoption_check(p_from, p_to, true) = 'live' then
    raise warning 'from: generation % is live: its workers compete for its events, and more may come', p_from
      using hint = format('`workers generation drain %1$s`, or: select core.generation_drain(%1$s)', p_from);
  end if;

  perform core.workers_probe(gen_random_uuid(), 0); -- there may be no worker that does it
  perform core.outbox_reap(1000);
  perform core.outbox_relayed_return_lost(p_from, t.event_type, v_now, null, p_limit)
  from unnest(coalesce(p_event_types, array[null])) as t(event_type);
  v_suspects := coalesce(core.claim_suspects(null), '{}');

  for v_type in select p.event_type from core.pending_types() p
    where p.generation = p_from and (p_event_types is null or p.event_type = any (p_event_types)) loop
    for v_row in
      select o.id, o.occurred_at from core.outbox o
      where o.generation = p_from and o.event_type = v_type and o.status = 'pending' and o.deleted_at is null
        and (p_before is null or o.created_at < p_before) and o.id <> all (v_suspects)
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit - cardinality(v_ids) for update of o skip locked loop
      v_ids := v_ids || v_row.id;
      v_occurred_ats := v_occurred_ats || v_row.occurred_at;
    end loop;
    exit when cardinality(v_ids) >= p_limit;
  end loop;
  if v_ids = '{}' then return 0; end if;
  for v_channel, v_id in
    with moved as (
      update core.outbox o set generation = p_to,
          channel = 'outbox_gen_' || p_to || coalesce(substring(o.channel from '^outbox_gen_[0-9]+(_.+)$'), ''),
          waiting_for = null, available_at = greatest(case when o.waiting_for is null then o.available_at end,
            v_now + b.n * interval '1 microsecond')
      from unnest(v_ids, v_occurred_ats) with ordinality as b(id, occurred_at, n)
      where o.id = b.id and o.occurred_at = b.occurred_at returning o.channel, o.id)
    select distinct on (m.channel) m.channel, m.id from moved m order by m.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
  perform core.operator_action('adopt', p_adopted_by, v_ids, p_to,
    jsonb_build_object('from', p_from, 'event_types', to_jsonb(p_event_types)));
  return cardinality(v_ids);
end
$$;
