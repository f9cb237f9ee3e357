-- core.server_restarted(p_since) says whether the server was started after that time.
create function core.server_restarted(p_since timestamptz) returns boolean language sql stable as $$
  select p_since < pg_postmaster_start_time()
$$;
