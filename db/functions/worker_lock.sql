-- core.worker_lock(p_session) is the key of the advisory lock that a live worker's session holds. A
-- session's, not the worker's: one that lost its connection does not wait for the old backend to
-- notice.
create function core.worker_lock(p_session uuid) returns bigint language sql immutable as $$
  select hashtextextended(p_session::text, 4871030926153309871)
$$;
