-- core.worker_gone(p_session) says whether no session holds the advisory lock of a worker's session: the worker is dead
-- or has lost its connection. It takes the lock and releases it at once.
create function core.worker_gone(p_session uuid) returns boolean language sql volatile as $$
  select case when pg_try_advisory_lock_shared(core.worker_lock(p_session))
              then pg_advisory_unlock_shared(core.worker_lock(p_session)) else false end
$$;
