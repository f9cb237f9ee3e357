-- name: AddFailureCluster :execrows
-- No row: the signature has a cluster already.
insert into platform.failure_clusters (
  cluster_id, workspace_id, component, operation, error_class, revision, failures, failure_count, severity,
    first_seen_at, last_seen_at)
values (@cluster_id, @workspace_id, @component, @operation, @error_class, @revision, @failures, @failure_count,
  @severity, @first_seen_at, @last_seen_at)
on conflict (component, operation, error_class, workspace_id) do nothing;

-- name: LockFailureCluster :one
select cluster_id, revision, failures, first_seen_at, last_seen_at from platform.failure_clusters
where workspace_id is not distinct from @workspace_id and component = @component and operation = @operation
  and error_class = @error_class
for update;

-- name: SaveFailureCluster :exec
update platform.failure_clusters
set revision = @revision, failures = @failures, failure_count = @failure_count, severity = @severity,
    first_seen_at = @first_seen_at, last_seen_at = @last_seen_at
where workspace_id is not distinct from @workspace_id and cluster_id = @cluster_id;
