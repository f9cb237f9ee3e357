-- The dedup log: a row says that a handler's transactional effect for a key is committed. Its
-- primary key is the race-free gate, never a SELECT before it.

-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;

create table core.event_handled (
  handler_name text not null,
  idempotency_key text not null,
  event_id uuid not null,
  event_type text not null,
  workspace_id uuid null,
  content_class text not null,
  handled_at timestamptz not null default clock_timestamp(),
  deleted_at timestamptz null,
  constraint event_handled_pk primary key (handler_name, idempotency_key),
  constraint event_handled_handler_name_form
    check (handler_name ~ '^[a-z][a-z0-9_]*[.][a-z][a-z0-9_]*$' and octet_length(handler_name) <= 128),
  constraint event_handled_idempotency_key_size check (octet_length(idempotency_key) between 1 and 640),
  constraint event_handled_content_class_known check (content_class in ('operational', 'workspace'))
) with (
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);
comment on table core.event_handled is 'Which handler has handled which idempotency key.';

-- never UPDATE or DELETE for the busy role: forgetting a key would let an effect happen twice
grant select, insert on core.event_handled to spectral_worker;
grant select on core.event_handled to spectral_operator;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  if exists (select from core.event_handled) then
    raise exception 'core.event_handled is not empty: going down would let handled events be handled again';
  end if;
end
$$;
-- +goose StatementEnd
drop table core.event_handled;
