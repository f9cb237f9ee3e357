-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.retention_policies_turn() lets one transaction at a time change policies: two would wait for each other as each
-- looks at the other's. Refuses TRUNCATE, which no constraint sees (SP050). Locks a row of core.leads.
create or replace function core.retention_policies_turn() returns trigger
language plpgsql
set search_path = pg_catalog, core, pg_temp
as $$
begin
  if tg_op = 'TRUNCATE' then
    raise exception 'core.retention_policies: outbox_row and event_handled must both have a policy' using errcode = 'SP050';
  end if;
  perform core.turn('retention_policies');
  return null;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
set local role spectral_owner;
-- as it was: what it calls now goes in an earlier step
-- +goose StatementBegin
-- core.retention_policies_turn() lets one transaction at a time change policies: two would wait for each other as each
-- looks at the other's. Refuses TRUNCATE, which no constraint sees (SP050).
create or replace function core.retention_policies_turn() returns trigger
language plpgsql
set search_path = pg_catalog, core, pg_temp
as $$
begin
  if tg_op = 'TRUNCATE' then
    raise exception 'core.retention_policies: outbox_row and event_handled must both have a policy' using errcode = 'SP050';
  end if;
  perform pg_advisory_xact_lock(5318420967713304281);
  return null;
end
$$;
-- +goose StatementEnd
reset role;
