-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table worlds.scans (
  workspace_id uuid null,
  scan_id uuid not null,
  subject text not null,
  state text not null,
  started_at timestamptz not null,
  finished_at timestamptz null,
  findings jsonb not null default '[]',
  failure text null,
  constraint scans_key unique nulls not distinct (scan_id, workspace_id),
  constraint scans_subject_size check (octet_length(subject) between 1 and 200),
  constraint scans_state_known check (state in ('running', 'completed', 'failed')),
  constraint scans_finished_at_set check ((state = 'running') = (finished_at is null)),
  constraint scans_times_in_order check (started_at <= finished_at),
  constraint scans_findings_array check (jsonb_typeof(findings) = 'array'),
  constraint scans_findings_of_completed check (state = 'completed' or findings = '[]'),
  constraint scans_failure_of_failed check ((state = 'failed') = (failure is not null)),
  constraint scans_failure_size check (octet_length(failure) between 1 and 2000)
);
comment on table worlds.scans is 'Scans of what the world models are about: running, then completed or failed for good.';
comment on column worlds.scans.subject is 'what is scanned, a card or a source: card:harbour';
comment on column worlds.scans.findings is 'by kind: [{"kind": ..., "occurrences": ...}]';
comment on column worlds.scans.failure is 'why it failed';
alter table worlds.scans enable row level security;
create policy scans_workspace on worlds.scans to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update (state, finished_at, findings, failure) on worlds.scans to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from worlds.scans) then
    raise exception 'worlds.scans is not empty: going down would lose scans';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.scans;
