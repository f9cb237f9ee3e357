-- core.worker_register(...) makes the calling session the one whose life is the worker's, and returns null. Two live
-- workers of one generation with different handlers for one event type would starve each other's: then nothing is
-- registered and the difference is returned as text. The worker's name is for people; p_handlers is {"event.type":
-- ["sorted", "handler names"]}, and p_effects has what core.handlers says of some of them: {"handler": {"effect":
-- "...", "on_replay": "..."}}. Called again after a lost connection. Holds a lock of the session; writes and locks
-- core.workers, writes core.handlers.
create function core.worker_register(p_worker uuid, p_generation bigint, p_name text, p_handlers jsonb,
  p_effects jsonb default '{}') returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_difference text;
  v_session constant uuid := gen_random_uuid();
begin
  -- one at a time: of two that start together, the second sees the first
  lock table core.workers in share update exclusive mode; -- not against those that write it otherwise
  v_difference := core.worker_difference(p_worker, p_generation, p_handlers);
  if v_difference is not null then return v_difference; end if;
  perform pg_advisory_lock(core.worker_lock(v_session));
  insert into core.workers (worker_id, session_id, generation, name, handlers)
  values (p_worker, v_session, p_generation, p_name, p_handlers)
  on conflict (worker_id) do update set session_id = v_session, gone_at = null, charged = false;
  insert into core.handlers as k (generation, handler_name, event_type, effect, on_replay)
  select p_generation, n.name, t.event_type, p_effects #>> array[n.name, 'effect'],
    coalesce(p_effects #>> array[n.name, 'on_replay'], 'allow')
  from jsonb_each(p_handlers) as t(event_type, names), jsonb_array_elements_text(t.names) as n(name)
  on conflict (generation, event_type, handler_name) do update
  set effect = excluded.effect, on_replay = excluded.on_replay
  where (k.effect, k.on_replay) is distinct from (excluded.effect, excluded.on_replay);
  return null;
end
$$;
