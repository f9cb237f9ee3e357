-- core.error_text(p_error) returns an error as last_error keeps it: whole up to 8192 bytes, otherwise its first 2048
-- characters, which have at most as many bytes.
create function core.error_text(p_error text) returns text language sql immutable as $$
  select case when octet_length(p_error) <= 8192 then p_error else left(p_error, 2048) end
$$;
