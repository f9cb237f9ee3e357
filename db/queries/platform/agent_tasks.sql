-- name: AddTask :execrows
-- Zero rows: the id is taken.
insert into platform.agent_tasks
  (agent_task_id, workspace_id, conversation_id, executor, input, status, created_at, updated_at, retain_until)
values
  (@agent_task_id, @workspace_id, @conversation_id, @executor, @input, @status, @created_at, @updated_at, @retain_until)
on conflict (agent_task_id) do nothing;

-- name: FindTask :one
select agent_task_id, conversation_id, executor, input, status, steps, result, failure_reason, last_error,
  approval_gate, approval_question, approval_requested_at, approval_verdict, approval_decided_by, approval_decided_at,
    approval_comment,
  cancel_requested_by, cancel_requested_at, run, tries, dispatch_event_id, created_at, updated_at, retain_until
from platform.agent_tasks
where agent_task_id = @agent_task_id and workspace_id is not distinct from @workspace_id;

-- name: LockTask :exec
-- Before it is read: what is read is then what stands.
select from platform.agent_tasks
where agent_task_id = @agent_task_id and workspace_id is not distinct from @workspace_id
for no key update;

-- name: SaveTask :exec
update platform.agent_tasks set
  status = @status, steps = @steps, result = sqlc.narg('result'), failure_reason = sqlc.narg('failure_reason'),
    last_error = sqlc.narg('last_error'),
  approval_gate = sqlc.narg('approval_gate'), approval_question = sqlc.narg('approval_question'),
    approval_requested_at = sqlc.narg('approval_requested_at'),
  approval_verdict = sqlc.narg('approval_verdict'), approval_decided_by = sqlc.narg('approval_decided_by'),
  approval_decided_at = sqlc.narg('approval_decided_at'), approval_comment = sqlc.narg('approval_comment'),
  cancel_requested_by = sqlc.narg('cancel_requested_by'), cancel_requested_at = sqlc.narg('cancel_requested_at'),
  run = @run, tries = @tries, dispatch_event_id = sqlc.narg('dispatch_event_id'), updated_at = @updated_at
where agent_task_id = @agent_task_id and workspace_id is not distinct from @workspace_id;
