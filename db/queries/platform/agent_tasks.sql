-- name: AddTask :exec
insert into platform.agent_tasks
  (agent_task_id, workspace_id, conversation_id, executor, input, status, created_at, updated_at, retain_until)
values (@agent_task_id, @workspace_id, @conversation_id, @executor, @input, @status, @created_at, @updated_at,
  @retain_until);

-- name: LockTask :one
select conversation_id, executor, input, status, steps, result, failure_reason, last_error, approval_gate,
  approval_question, approval_requested_at, approved_by, approved_at, cancel_requested_by, cancel_requested_at, run,
  tries, dispatch_event_id, created_at, updated_at, retain_until
from platform.agent_tasks
where agent_task_id = @agent_task_id and workspace_id is not distinct from @workspace_id
for no key update;

-- name: SaveTask :exec
update platform.agent_tasks set
  status = @status, steps = @steps, result = sqlc.narg('result'), failure_reason = sqlc.narg('failure_reason'),
    last_error = sqlc.narg('last_error'),
  approval_gate = sqlc.narg('approval_gate'), approval_question = sqlc.narg('approval_question'),
    approval_requested_at = sqlc.narg('approval_requested_at'),
  approved_by = sqlc.narg('approved_by'), approved_at = sqlc.narg('approved_at'),
  cancel_requested_by = sqlc.narg('cancel_requested_by'), cancel_requested_at = sqlc.narg('cancel_requested_at'),
  run = @run, tries = @tries, dispatch_event_id = sqlc.narg('dispatch_event_id'), updated_at = @updated_at
where agent_task_id = @agent_task_id and workspace_id is not distinct from @workspace_id;
