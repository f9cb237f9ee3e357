-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table platform.agent_tasks (
  agent_task_id uuid not null,
  workspace_id uuid null,
  conversation_id uuid not null,
  executor text not null,
  input jsonb not null,
  status text not null,
  steps jsonb not null default '[]',
  result jsonb null,
  failure_reason text null,
  last_error text null,
  approval_gate text null,
  approval_question text null,
  approval_requested_at timestamptz null,
  approval_verdict text null,
  approval_decided_by text null,
  approval_decided_at timestamptz null,
  approval_comment text null,
  cancel_requested_by text null,
  cancel_requested_at timestamptz null,
  run bigint not null default 0,
  tries integer not null default 0,
  dispatch_event_id uuid null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  retain_until timestamptz not null,
  constraint agent_tasks_pk primary key (agent_task_id),
  constraint agent_tasks_conversation foreign key (conversation_id) references platform.conversations (conversation_id),
  constraint agent_tasks_executor_form check (executor ~ '^[a-z][a-z0-9_]{0,62}$'),
  constraint agent_tasks_input_object check (jsonb_typeof(input) = 'object' and octet_length(input::text) <= 1048576),
  constraint agent_tasks_status_known
    check (status in ('queued', 'running', 'awaiting_approval', 'succeeded', 'failed', 'cancelled')),
  constraint agent_tasks_steps_array check (jsonb_typeof(steps) = 'array' and jsonb_array_length(steps) <= 100),
  constraint agent_tasks_result_of_success check ((status = 'succeeded') = (result is not null)),
  constraint agent_tasks_result_object check (jsonb_typeof(result) = 'object' and octet_length(result::text) <= 1048576),
  constraint agent_tasks_reason_of_failure check ((status = 'failed') = (failure_reason is not null)),
  constraint agent_tasks_texts_size check (
    octet_length(failure_reason) between 1 and 4000 and octet_length(last_error) between 1 and 4000
    and octet_length(approval_question) between 1 and 4000 and octet_length(approval_comment) between 1 and 4000
    and octet_length(approval_decided_by) between 1 and 200 and octet_length(cancel_requested_by) between 1 and 200),
  constraint agent_tasks_approval_asked check (num_nulls(approval_gate, approval_question, approval_requested_at) in (0, 3)),
  constraint agent_tasks_approval_decided check (
    num_nulls(approval_verdict, approval_decided_by, approval_decided_at) in (0, 3)
    and (approval_verdict is null or approval_gate is not null) and (approval_comment is null or approval_verdict is not null)),
  constraint agent_tasks_verdict_known check (approval_verdict in ('approved', 'rejected')),
  constraint agent_tasks_awaits_a_verdict check (status <> 'awaiting_approval' or approval_gate is not null and approval_verdict is null),
  constraint agent_tasks_cancel_requested check (num_nulls(cancel_requested_by, cancel_requested_at) in (0, 2)),
  constraint agent_tasks_run_counted check (run >= 0 and tries >= 0 and tries <= run),
  constraint agent_tasks_run_dispatched check ((run = 0) = (dispatch_event_id is null) and (status <> 'running' or run > 0)),
  constraint agent_tasks_retained check (retain_until > created_at)
);
comment on table platform.agent_tasks is
  'Work of agents, as business state; core.outbox carries agent.task.dispatched, which says that a task awaits a worker.';
comment on column platform.agent_tasks.executor is 'by name, what does the work';
comment on column platform.agent_tasks.steps is 'the steps that are done, in order: {name, result, run, done_at}; whoever takes the task up goes on after them';
comment on column platform.agent_tasks.last_error is 'what the latest run that did not come to an end said';
comment on column platform.agent_tasks.approval_gate is 'the latest approval that was asked for, for the executor; the question is for people';
comment on column platform.agent_tasks.run is 'counts the runs; only the latest may write, while the task is running';
comment on column platform.agent_tasks.tries is 'runs since the task was last dispatched or a step was done';
comment on column platform.agent_tasks.dispatch_event_id is 'core.outbox.id of the event that the latest run began with';
comment on column platform.agent_tasks.retain_until is 'not swept before';
create index agent_tasks_conversation_id on platform.agent_tasks (conversation_id);
alter table platform.agent_tasks enable row level security;
create policy agent_tasks_workspace on platform.agent_tasks to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on platform.agent_tasks to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.agent_tasks) then
    raise exception 'platform.agent_tasks is not empty: going down would lose agent tasks';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.agent_tasks;
