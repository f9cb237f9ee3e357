-- core.retention_policies_turn() lets one transaction at a time change policies: two would wait for each other as each
-- looks at the other's. Refuses TRUNCATE, which no constraint sees (SP050). Locks a row of core.leads.
create function core.retention_policies_turn() returns trigger
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
create trigger retention_policies_turn before insert or update or delete or truncate on core.retention_policies
  for each statement execute function core.retention_policies_turn();
