-- core.retention_policies_keep() refuses policies that core.retention_policies_check finds fault with, whoever writes them
-- (SP050). At commit, so that policies that depend on each other can be changed together.
create function core.retention_policies_keep() returns trigger
language plpgsql
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_fault text;
begin
  -- with locks: a transaction with an older snapshot is told so, instead of judging by it
  perform from core.retention_policies p order by p.subject, p.content_class for update;
  v_fault := core.retention_policies_check();
  if v_fault is not null then
    raise exception 'core.retention_policies: %', v_fault
      using errcode = 'SP050', column = 'active_ttl_days', hint = 'change the policies that depend on each other in one transaction';
  end if;
  return null;
end
$$;
create constraint trigger retention_policies_keep after insert or update or delete on core.retention_policies
  deferrable initially deferred for each row execute function core.retention_policies_keep();
