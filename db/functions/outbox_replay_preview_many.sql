-- core.outbox_replay_preview_many(p_event_ids, p_new_generation, p_occurred_ats) returns what core.outbox_replay_many
-- would run: for each event and each handler that live workers of the generation have for it, whether it would run, or
-- when it handled the event's key; and if it had begun with the event, what it does outside its transaction and what a
-- replay does with it (core.handlers). A line without a handler stands for an event that has none there; note says what
-- else keeps it from running. It does not check that the events have failed. At most 1000 events. Refuses what
-- core.outbox_replay_many refuses. Reads core.outbox, core.workers, core.event_handled, core.paused_types,
-- core.event_types, core.deployments.
create function core.outbox_replay_preview_many(p_event_ids uuid[], p_new_generation bigint,
  p_occurred_ats timestamptz[] default null) returns table (event_id uuid, occurred_at timestamptz, event_type text,
  handler text, would_run boolean, handled_at timestamptz, note text, begun boolean, effect text, on_replay text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_types text[];
  v_handlers text[];
  v_no_handler text;
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  perform core.generation_open(p_new_generation, false);
  select array_agg(h.event_type), array_agg(h.handler) into v_types, v_handlers
    from core.generation_handlers(p_new_generation) h;
  v_no_handler := case when v_types is null
    then format('no worker of generation %s is live: what will run is not known', p_new_generation) end;
  return query
    with given as materialized
      (select distinct g.* from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at)),
    rows as materialized
      (select o.id, o.occurred_at, o.event_type, o.event_version, o.target, o.idempotency_key
       from given g cross join lateral
         -- not part of the join, so that no plan begins at the outbox
         (select o.* from core.outbox o where o.id = g.id
           and (g.occurred_at is null or o.occurred_at = g.occurred_at) offset 0) o)
    select r.id, r.occurred_at, r.event_type, h.handler, h.handler is not null and d.handled_at is null
      and c.unconsumed is null, d.handled_at,
           nullif(concat_ws('; ',
             case when h.handler is null
               then coalesce(v_no_handler, format('no live worker of generation %s handles %s%s', p_new_generation,
                 r.event_type, coalesce(' for target ' || r.target, ''))) end,
             c.unconsumed,
             (select format('paused in generation %s since %s by %s: it will wait', p.generation,
               to_char(p.paused_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), p.paused_by)
              from core.paused_types p where p.generation = p_new_generation and p.event_type = r.event_type)), ''),
           b.handler_name is not null, k.effect, coalesce(k.on_replay, 'allow')
    from rows r
    left join lateral (select l.handler from unnest(v_types, v_handlers) as l(event_type, handler)
                       where l.event_type = r.event_type and core.handles(l.handler, r.target)) h on true
    left join lateral (select e.handled_at from core.event_handled e
                       where e.handler_name = h.handler and e.idempotency_key = r.idempotency_key offset 0) d on true
    left join lateral (select format('no handler in generation %s consumes its type: it will not be replayed',
      p_new_generation) where core.unconsumed(r.event_type, r.event_version, p_new_generation)) c(unconsumed) on true
    left join core.handlers k on k.generation = p_new_generation and k.event_type = r.event_type
      and k.handler_name = h.handler
    left join core.begun_handlers(array(select w.id from rows w order by w.id, w.occurred_at),
        array(select w.occurred_at from rows w order by w.id, w.occurred_at), p_new_generation) b
      on b.id = r.id and b.occurred_at = r.occurred_at and b.handler_name = h.handler
    order by r.id, r.occurred_at, h.handler;
end
$$;
