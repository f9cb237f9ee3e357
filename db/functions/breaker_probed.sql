-- core.breaker_probed(p_generation, p_handler, p_calls, p_failed) takes in a probe of an open breaker: of so many
-- calls, the last one failed or none. Without a failure the next probe is twice as wide, and after one of eight, or if
-- nothing waits any more, the breaker closes. After a failure the next probe is of one event, in 1, 2, 4, 8 and then 15
-- seconds. Returns whether it closes: then call core.breaker_release. Writes core.breakers.
create function core.breaker_probed(p_generation bigint, p_handler text, p_calls integer, p_failed boolean)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_closing boolean;
begin
  update core.breakers b set probing_until = null, probes = b.probes + p_calls,
    width = case when p_failed then 1 when p_calls >= b.width then b.width * 2 else b.width end,
    failed_probes = case when p_failed then least(b.failed_probes, 100) + 1 else 0 end,
    next_probe_at = clock_timestamp() + case when p_failed
      then make_interval(secs => least(2 ^ least(b.failed_probes, 10), 15))
      when p_calls = 0 then interval '5 seconds' else interval '0' end,
    closing = b.closing or not p_failed and (p_calls >= 8 or p_calls < b.width and not exists
      (select from core.outbox o where o.generation = p_generation and o.waiting_for = p_handler
         and o.status = 'pending' and o.deleted_at is null))
  where b.generation = p_generation and b.handler_name = p_handler and not b.forced
  returning b.closing into v_closing;
  return coalesce(v_closing, false);
end
$$;
