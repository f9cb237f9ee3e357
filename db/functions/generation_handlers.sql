-- core.generation_handlers(p_generation) lists which handlers the live workers of a generation have for which event
-- type. Workers whose sessions are gone, or were never seen because LISTEN goes through a transaction pooler, are not
-- among them. Reads core.live_workers.
create function core.generation_handlers(p_generation bigint) returns table (event_type text, handler text)
language sql stable security definer set search_path = pg_catalog, core, pg_temp as $$
  select distinct t.key, h.name
  from core.live_workers w, jsonb_each(w.handlers) as t, jsonb_array_elements_text(t.value) as h(name)
  where w.generation = p_generation order by 1, 2
$$;
