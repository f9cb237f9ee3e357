-- Who leads in what one worker does for all.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.leads (
  duty text not null,
  constraint leads_pk primary key (duty)
);
comment on table core.leads is 'One row for each duty that one transaction at a time does for all; whoever has it locked leads.';
insert into core.leads (duty) values ('ack_measure'), ('reap'), ('sweep');

-- +goose StatementBegin
-- core.lead(p_duty) says whether the calling transaction leads in a duty, until it ends; nobody waits. By the lock of a row that only
-- the owner's functions can lock: an advisory lock anybody who can connect can hold, for ever, and nobody would notice that
-- nothing is reaped any more. A row lock takes a transaction id: ask when there is something to do. Locks a row of core.leads, and
-- inserts it if somebody has deleted it.
create function core.lead(p_duty text) returns boolean
language plpgsql volatile
as $$
begin
  insert into core.leads (duty)
  select p_duty where not exists (select from core.leads l where l.duty = p_duty)
  on conflict (duty) do nothing;
  perform from core.leads l where l.duty = p_duty for update skip locked;
  return found;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.lead(text);
drop table core.leads;
