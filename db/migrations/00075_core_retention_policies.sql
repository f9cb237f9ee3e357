-- How long rows are kept (seed D13). internal/core/retention has the same in Go, and a test compares them.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.retention_policies (
  subject text not null,
  content_class text not null default '*',
  active_ttl_days integer not null,
  tombstoned_grace_days integer not null,
  disposal text not null default 'HARD_DELETE',
  constraint retention_policies_pk primary key (subject, content_class),
  constraint retention_policies_subject_known check (subject in ('outbox_row', 'event_handled', 'operator_action')),
  -- all content classes alike, today: what sweeps does not look at them
  constraint retention_policies_content_class_any check (content_class = '*'),
  constraint retention_policies_active_ttl_days_range check (active_ttl_days between 1 and 36500),
  constraint retention_policies_tombstoned_grace_days_range check (tombstoned_grace_days between 1 and 3650),
  constraint retention_policies_disposal_known check (disposal = 'HARD_DELETE')
);
comment on table core.retention_policies is 'How long rows are kept; core.retention_sweep deletes no others.';
comment on column core.retention_policies.active_ttl_days is 'days of 24 hours until a row is tombstoned';
comment on column core.retention_policies.tombstoned_grace_days is 'days of 24 hours from the tombstone until the row is deleted';
grant select on core.retention_policies to spectral_operator, spectral_retention;

-- +goose StatementBegin
-- core.retention_policies_check() says what is wrong with the policies: null if nothing. What has been handled has to be remembered for
-- longer than its event can come back, so event_handled.active_ttl > outbox.active_ttl + outbox.grace (seed D13). Reads
-- core.retention_policies.
create function core.retention_policies_check() returns text
language sql volatile
begin atomic
  select case
    when count(*) filter (where p.subject in ('outbox_row', 'event_handled')) < 2 then 'outbox_row and event_handled must both have a policy'
    when max(p.active_ttl_days) filter (where p.subject = 'event_handled')
      <= max(p.active_ttl_days + p.tombstoned_grace_days) filter (where p.subject = 'outbox_row') then
      format('event_handled is kept for %s days, which must be more than the %s + %s days of outbox_row: an event handled again would take effect again',
        max(p.active_ttl_days) filter (where p.subject = 'event_handled'), max(p.active_ttl_days) filter (where p.subject = 'outbox_row'),
        max(p.tombstoned_grace_days) filter (where p.subject = 'outbox_row'))
  end
  from core.retention_policies p where p.content_class = '*';
end;
-- +goose StatementEnd

-- +goose StatementBegin
-- core.retention_policies_turn() lets one transaction at a time change policies: two would wait for each other as each
-- looks at the other's. Refuses TRUNCATE, which no constraint sees (SP050).
create function core.retention_policies_turn() returns trigger
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
create trigger retention_policies_turn before insert or update or delete or truncate on core.retention_policies
  for each statement execute function core.retention_policies_turn();

-- +goose StatementBegin
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
-- +goose StatementEnd
create constraint trigger retention_policies_keep after insert or update or delete on core.retention_policies
  deferrable initially deferred for each row execute function core.retention_policies_keep();

insert into core.retention_policies (subject, active_ttl_days, tombstoned_grace_days) values
  ('outbox_row', 45, 7),
  ('event_handled', 60, 7),
  ('operator_action', 365, 7);
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select subject, content_class, active_ttl_days, tombstoned_grace_days from core.retention_policies
             except values ('outbox_row', '*', 45, 7), ('event_handled', '*', 60, 7), ('operator_action', '*', 365, 7)) then
    raise exception 'core.retention_policies has policies of your own: going down would lose them';
  end if;
end
$$;
-- +goose StatementEnd
drop function core.retention_policies_check();
drop table core.retention_policies;
drop function core.retention_policies_keep();
drop function core.retention_policies_turn();
