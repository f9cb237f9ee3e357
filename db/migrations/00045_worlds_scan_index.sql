-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table worlds.scan_index (
  workspace_id uuid null,
  subject text not null,
  scan_id uuid not null,
  finished_at timestamptz not null,
  finding_kinds text[] not null,
  finding_count bigint not null,
  constraint scan_index_key unique nulls not distinct (subject, workspace_id),
  constraint scan_index_subject_size check (octet_length(subject) between 1 and 200),
  constraint scan_index_finding_count_possible check (finding_count >= cardinality(finding_kinds))
);
comment on table worlds.scan_index is 'Projection of worlds.scan.completed: the scan of each subject that finished last.';
comment on column worlds.scan_index.finding_kinds is 'what it found, in order; how often is in scan_index_findings';
comment on column worlds.scan_index.finding_count is 'occurrences of all kinds together';
alter table worlds.scan_index enable row level security;
create policy scan_index_workspace on worlds.scan_index to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on worlds.scan_index to spectral_worlds;

create table worlds.scan_index_findings (
  workspace_id uuid null,
  subject text not null,
  kind text not null,
  scan_id uuid not null,
  finished_at timestamptz not null,
  occurrences bigint not null,
  constraint scan_index_findings_key unique nulls not distinct (subject, workspace_id, kind),
  constraint scan_index_findings_subject_size check (octet_length(subject) between 1 and 200),
  constraint scan_index_findings_kind_size check (octet_length(kind) between 1 and 64),
  constraint scan_index_findings_occurrences_positive check (occurrences >= 1)
);
comment on table worlds.scan_index_findings is
  'Projection of worlds.scan.completed: the last scan of each subject that found something of a kind. It stands if that is the scan of scan_index.';
-- Rows, where an array in scan_index would look simpler: under row level security an index serves only leakproof
-- operators. Equality of texts is one; @> of arrays is not, and would read the whole table.
create index scan_index_findings_kind on worlds.scan_index_findings (kind, workspace_id);
alter table worlds.scan_index_findings enable row level security;
create policy scan_index_findings_workspace on worlds.scan_index_findings to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on worlds.scan_index_findings to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from worlds.scan_index) then
    raise exception 'worlds.scan_index is not empty: going down would lose indexed scans';
  end if;
  if exists (select from worlds.scan_index_findings) then
    raise exception 'worlds.scan_index_findings is not empty: going down would lose indexed findings';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.scan_index;
drop table worlds.scan_index_findings;
