-- core.retention_policies_keep() refuses policies with which core.retention_policies_check finds a fault, from every
-- role, and TRUNCATE (SP050). It checks at commit, so that policies that depend on each other can be changed together.
create function core.retention_policies_keep() returns trigger
language plpgsql set search_path = pg_catalog, core, pg_temp as $$
declare
  v_fault text;
begin
  if tg_op = 'TRUNCATE' then
    v_fault := 'outbox_row and event_handled must both have a policy';
  else
    -- Two transactions that change policies cannot both pass: each needs the rows that the other has changed. One of
    -- them fails, as a deadlock or, with an older snapshot, as a serialization failure.
    perform from core.retention_policies p order by p.subject, p.content_class for update;
    v_fault := core.retention_policies_check();
  end if;
  if v_fault is not null then
    raise exception 'core.retention_policies: %', v_fault using errcode = 'SP050', column = 'active_ttl_days',
      hint = 'change the policies that depend on each other in one transaction';
  end if;
  return null;
end
$$;
create constraint trigger retention_policies_keep
  after insert or delete or update of subject, content_class, active_ttl_days,
    tombstoned_grace_days on core.retention_policies
  deferrable initially deferred for each row execute function core.retention_policies_keep();
create trigger retention_policies_truncate before truncate on core.retention_policies
  for each statement execute function core.retention_policies_keep();
