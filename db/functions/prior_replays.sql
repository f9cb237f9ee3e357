-- core.prior_replays(p_history) returns how often an event with that failure_history was replayed: the highest cycle,
-- because older entries may have been dropped. Reads no table.
create function core.prior_replays(p_history jsonb) returns integer
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select coalesce(max(least(c::numeric, 1000000)), 0)::integer
  from jsonb_path_query(p_history, '$[*].cycle ? (@.type() == "number")') as c
$$;
