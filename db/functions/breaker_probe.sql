-- core.breaker_probe(p_generation, p_handler, p_seconds) gives the caller the right to probe an open breaker, for at
-- most so many seconds, and returns how many events it may run; null if it is not time, or another worker probes it.
-- Writes core.breakers.
create function core.breaker_probe(p_generation bigint, p_handler text, p_seconds double precision) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_width integer;
begin
  update core.breakers b set probing_until = v_now + make_interval(secs => p_seconds)
  where b.generation = p_generation and b.handler_name = p_handler and not b.forced and not b.closing
    and b.next_probe_at <= v_now and coalesce(b.probing_until <= v_now, true)
  returning b.width into v_width;
  return v_width;
end
$$;
