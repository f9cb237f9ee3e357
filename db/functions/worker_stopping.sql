-- core.worker_stopping(p_worker, p_generation, p_name) records that a worker was told to stop: what it still holds when
-- it ends, or loses its connections, is charged to no row. One that is not registered gets a row without a session.
-- Writes core.workers.
create function core.worker_stopping(p_worker uuid, p_generation bigint, p_name text) returns void
language sql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
  insert into core.workers (worker_id, session_id, generation, name, handlers, stopping)
  values (p_worker, gen_random_uuid(), p_generation, p_name, '{}', true)
  on conflict (worker_id) do update set stopping = true
$$;
