-- core.begun_handlers(p_ids, p_occurred_ats, p_generation) lists, for each of the events, the handlers of a generation
-- that had begun with it and have not handled it, as failed attempts tell. If no worker of that generation has
-- registered handlers of the type yet, those of the latest generation that has count. Reads core.outbox, core.handlers,
-- core.failed_attempts, core.event_handled.
create function core.begun_handlers(p_ids uuid[], p_occurred_ats timestamptz[], p_generation bigint)
returns table (id uuid, occurred_at timestamptz, handler_name text, on_replay text)
language sql stable as $$
  select o.id, o.occurred_at, h.handler_name, h.on_replay
  from unnest(p_ids, p_occurred_ats) as k(id, occurred_at)
  cross join lateral (select o.* from core.outbox o where o.id = k.id and o.occurred_at = k.occurred_at offset 0) o
  join core.handlers h on h.event_type = o.event_type and core.handles(h.handler_name, o.target)
    and h.generation = (select k.generation from core.handlers k where k.event_type = o.event_type
      order by k.generation = p_generation desc, k.generation desc limit 1)
  where exists (select from core.failed_attempts f
      where f.event_id = o.id and f.occurred_at = o.occurred_at and f.handler_name = h.handler_name)
    and not exists (select from core.event_handled e
      where e.handler_name = h.handler_name and e.idempotency_key = o.idempotency_key)
$$;
