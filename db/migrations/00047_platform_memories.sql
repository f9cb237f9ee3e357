-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table platform.memories (
  memory_id uuid not null,
  workspace_id uuid null,
  scope text not null,
  statement text not null,
  observations bigint not null,
  state text not null default 'working',
  version bigint not null,
  recorded_at timestamptz not null,
  promoted_at timestamptz null,
  retired_at timestamptz null,
  constraint memories_pk primary key (memory_id),
  constraint memories_scope check (scope in ('agent', 'workspace')),
  constraint memories_statement_size check (octet_length(statement) between 1 and 2000),
  constraint memories_observations_positive check (observations >= 1),
  constraint memories_state check (state in ('working', 'promoted', 'retired')),
  constraint memories_version_positive check (version >= 1),
  constraint memories_promoted check (state <> 'promoted' or promoted_at is not null),
  constraint memories_working check (state <> 'working' or promoted_at is null),
  constraint memories_retired check ((state = 'retired') = (retired_at is not null))
);
comment on table platform.memories is 'What agents have learned: working until it is promoted, and in the end retired. What is recorded after that is a new memory.';
comment on column platform.memories.observations is 'how often the statement was recorded';
comment on column platform.memories.version is 'counts the changes of the memory from 1';
create unique index memories_statement_once on platform.memories (scope, statement, workspace_id) nulls not distinct
  where state <> 'retired';
alter table platform.memories enable row level security;
create policy memories_workspace on platform.memories to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update (observations, state, version, promoted_at, retired_at) on platform.memories to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.memories) then
    raise exception 'platform.memories is not empty: going down would lose memories';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.memories;
