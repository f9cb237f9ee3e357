-- core.tried(p_attempts, p_last_error) says whether a handler has tried an event in the cycle that it is in: one that
-- waits then waits for a retry; else as its producer asked.
create function core.tried(p_attempts integer, p_last_error text) returns boolean language sql immutable as $$
  select p_attempts > 0 or p_last_error is not null
$$;
