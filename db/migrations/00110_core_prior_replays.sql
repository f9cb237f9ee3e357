-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.prior_replays(p_history) is how often an event with that failure_history was replayed: the highest of its cycles, for those before may have
-- had to make room. Touches no table.
create function core.prior_replays(p_history jsonb) returns integer
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(max(least((h ->> 'cycle')::numeric, 1000000)), 0)::integer
  from jsonb_array_elements(p_history) as h where jsonb_typeof(h -> 'cycle') = 'number'
$$;
-- +goose StatementEnd
grant execute on function core.prior_replays(jsonb) to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.prior_replays(jsonb);
