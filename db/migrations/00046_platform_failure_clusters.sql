-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table platform.failure_clusters (
  cluster_id uuid not null,
  workspace_id uuid null,
  component text not null,
  operation text not null,
  error_class text not null,
  revision bigint not null,
  failures jsonb not null,
  failure_count bigint not null,
  severity text not null,
  first_seen_at timestamptz not null,
  last_seen_at timestamptz not null,
  constraint failure_clusters_pk primary key (cluster_id),
  constraint failure_clusters_signature unique nulls not distinct (component, operation, error_class, workspace_id),
  constraint failure_clusters_component_size check (octet_length(component) between 1 and 200),
  constraint failure_clusters_operation_size check (octet_length(operation) between 1 and 200),
  constraint failure_clusters_error_class_size check (octet_length(error_class) between 1 and 200),
  constraint failure_clusters_revision_positive check (revision >= 1),
  constraint failure_clusters_failures_array check (jsonb_typeof(failures) = 'array' and jsonb_array_length(failures) between 1 and 50),
  constraint failure_clusters_failure_count_positive check (failure_count >= 1),
  constraint failure_clusters_severity check (severity in ('low', 'medium', 'high', 'critical')),
  constraint failure_clusters_seen check (isfinite(first_seen_at) and isfinite(last_seen_at) and first_seen_at <= last_seen_at)
);
comment on table platform.failure_clusters is 'Failures of one signature, counted by kind; each detection raises the revision.';
comment on column platform.failure_clusters.failures is 'array of {kind, count, example}, by kind';
comment on column platform.failure_clusters.failure_count is 'the sum of the counts';
alter table platform.failure_clusters enable row level security;
create policy failure_clusters_workspace on platform.failure_clusters to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update (revision, failures, failure_count, severity, first_seen_at, last_seen_at)
  on platform.failure_clusters to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.failure_clusters) then
    raise exception 'platform.failure_clusters is not empty: going down would lose detected clusters';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.failure_clusters;
