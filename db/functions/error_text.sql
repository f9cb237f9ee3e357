-- core.error_text(p_error) is an error as last_error keeps it: of one with more than 8192 bytes the start, which has
-- at most that many, whatever its letters.
create function core.error_text(p_error text) returns text language sql immutable as $$
  select case when octet_length(p_error) <= 8192 then p_error else left(p_error, 2048) end
$$;
