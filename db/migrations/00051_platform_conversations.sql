-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table platform.conversations (
  conversation_id uuid not null,
  workspace_id uuid null,
  kind text not null,
  trigger_event_id uuid null,
  created_at timestamptz not null,
  constraint conversations_pk primary key (conversation_id),
  constraint conversations_kind_known check (kind in ('reactive', 'proactive')),
  constraint conversations_trigger_proactive check (trigger_event_id is null or kind = 'proactive')
);
comment on table platform.conversations is 'What agent tasks belong to: begun by somebody who asked, or by platform itself.';
comment on column platform.conversations.trigger_event_id is
  'core.outbox.id of the event that caused a proactive conversation; no foreign key: the outbox is partitioned one day, and its rows go before these';
alter table platform.conversations enable row level security;
create policy conversations_workspace on platform.conversations to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert on platform.conversations to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.conversations) then
    raise exception 'platform.conversations is not empty: going down would lose conversations';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.conversations;
