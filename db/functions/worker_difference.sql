-- core.worker_difference(...) says in which way a live worker of the generation, other than
-- p_worker, handles an event type by other handlers; null: none does. p_handlers is {"event.type":
-- ["sorted", "handler names"]}. Reads core.workers.
create function core.worker_difference(p_worker uuid, p_generation bigint, p_handlers jsonb) returns text
language sql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
  select format('worker %s is live and handles %s by %s, not by %s', w.name, t.event_type, w.handlers -> t.event_type,
    t.names)
  from core.workers w, jsonb_each(p_handlers) as t(event_type, names)
  where w.generation = p_generation and w.worker_id <> p_worker
    and w.handlers ? t.event_type and w.handlers -> t.event_type <> t.names and not core.worker_gone(w.session_id)
  order by w.name, t.event_type limit 1
$$;
