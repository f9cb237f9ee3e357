-- name: RecordMemory :one
-- Recording what is known already is one more observation of it; what was retired is known no more.
insert into platform.memories (memory_id, workspace_id, scope, statement, observations, version, recorded_at)
values (@memory_id, @workspace_id, @scope, @statement, 1, 1, @recorded_at)
on conflict (scope, statement, workspace_id) where retired_at is null do update
  set observations = memories.observations + 1, version = memories.version + 1
returning memory_id;

-- name: LockMemory :one
select scope, statement, observations, version, promoted_at, retired_at from platform.memories
where workspace_id is not distinct from @workspace_id and memory_id = @memory_id
for update;

-- name: PutMemory :exec
update platform.memories
set version = @version, promoted_at = @promoted_at, retired_at = @retired_at
where workspace_id is not distinct from @workspace_id and memory_id = @memory_id;
