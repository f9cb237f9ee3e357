-- core.tried(p_attempts, p_last_error) says of a pending event what it waits for. True: a retry. False: the time that
-- its producer chose.
create function core.tried(p_attempts integer, p_last_error text) returns boolean language sql immutable as $$
  select p_attempts > 0 or p_last_error is not null
$$;
