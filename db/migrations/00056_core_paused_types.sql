-- Event types that are not dispatched for the time being.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.paused_types (
  event_type text not null,
  generation bigint not null,
  paused_at timestamptz not null default clock_timestamp(),
  paused_by text not null,
  reason text null,
  constraint paused_types_pk primary key (generation, event_type),
  constraint paused_types_generation_range check (generation between 1 and 999999999999),
  constraint paused_types_paused_by_size check (octet_length(paused_by) between 1 and 256),
  constraint paused_types_reason_size check (octet_length(reason) between 1 and 1024)
);
comment on table core.paused_types is 'Event types whose rows nobody claims in a generation until core.event_type_resume; publishing goes on.';
grant select on core.paused_types to spectral_operator;
reset role;

-- +goose Down
-- whether anything is paused is asked where claims stop minding it
set local lock_timeout = '500ms';
drop table core.paused_types;
