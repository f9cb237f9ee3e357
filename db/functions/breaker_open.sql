-- core.breaker_open(p_generation, p_handler, p_event_type, p_cause, p_opened_by) opens the breaker of a handler, unless
-- it is open: its events wait, but for probes (docs/decisions/0024). Returns whether it was closed. Wakes the workers
-- of the type. Writes core.breakers; reads core.event_types.
create function core.breaker_open(p_generation bigint, p_handler text, p_event_type text, p_cause text,
  p_opened_by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  insert into core.breakers as b (generation, handler_name, event_type, cause, opened_by)
  values (p_generation, left(p_handler, 256), left(p_event_type, 256), left(p_cause, 1000), left(p_opened_by, 256))
  on conflict (generation, handler_name) do update
  set closing = false, width = 1, probes = 0, failed_probes = 0, cause = excluded.cause,
    opened_by = excluded.opened_by, opened_at = clock_timestamp(),
    next_probe_at = excluded.next_probe_at where b.closing;
  return found;
end
$$;
