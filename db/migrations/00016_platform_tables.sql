-- The platform context.
--
-- Where the natural key holds a null workspace, id is the primary key, which logical replication needs, and the natural
-- key is unique.
-- +goose Up
set local lock_timeout = '500ms';
create schema platform authorization spectral_owner;
set local role spectral_owner;
comment on schema platform is 'The platform context.';
grant usage on schema platform to spectral_platform;

create table platform.system_cards (
  id bigint generated always as identity,
  workspace_id uuid null,
  card_id text not null,
  version bigint not null,
  title text not null,
  snapshot jsonb not null,
  projected_at timestamptz not null default clock_timestamp(),
  constraint system_cards_pk primary key (id),
  constraint system_cards_key unique nulls not distinct (workspace_id, card_id),
  constraint system_cards_version_positive check (version >= 1),
  constraint system_cards_snapshot_object check (jsonb_typeof(snapshot) = 'object')
);
comment on table platform.system_cards is 'Projection of worlds'' world model cards: the latest version seen of each.';
comment on column platform.system_cards.snapshot is 'the event''s payload, unchanged';
grant select, insert, update on platform.system_cards to spectral_platform;

-- The key has the workspace last: "is not distinct from", by which a row is found, serves no index, and the rest then
-- does. The tables after this one have the same order.
create table platform.decisions (
  id bigint generated always as identity,
  workspace_id uuid null,
  decision_id uuid not null,
  rule_id text not null,
  outcome text not null,
  override_reason text null,
  decided_by text not null,
  decided_at timestamptz not null,
  recorded_at timestamptz not null,
  constraint decisions_pk primary key (id),
  constraint decisions_key unique nulls not distinct (decision_id, workspace_id),
  constraint decisions_rule_id_size check (octet_length(rule_id) between 1 and 200),
  constraint decisions_outcome_known check (outcome in ('followed', 'overridden')),
  constraint decisions_override_reason_given check ((outcome = 'overridden') = (override_reason is not null)),
  constraint decisions_override_reason_size check (octet_length(override_reason) between 1 and 1000),
  constraint decisions_decided_by_size check (octet_length(decided_by) between 1 and 200),
  constraint decisions_decided_at_finite check (isfinite(decided_at))
);
comment on table platform.decisions is 'What people and agents decided on rules'' proposals. A decision never changes.';
comment on column platform.decisions.decided_by is 'the person or agent';
comment on column platform.decisions.override_reason is 'why the proposal was overridden; null if it was followed';
grant select, insert on platform.decisions to spectral_platform;

create table platform.override_patterns (
  id bigint generated always as identity,
  workspace_id uuid null,
  rule_id text not null,
  followed bigint not null,
  overridden bigint not null,
  constraint override_patterns_pk primary key (id),
  constraint override_patterns_key unique nulls not distinct (rule_id, workspace_id),
  constraint override_patterns_rule_id_size check (octet_length(rule_id) between 1 and 200),
  constraint override_patterns_counts_possible check (followed >= 0 and overridden >= 0 and followed + overridden >= 1)
);
comment on table platform.override_patterns is 'Projection of decision.recorded: each rule''s count by outcome';
grant select, insert, update on platform.override_patterns to spectral_platform;

create table platform.override_reasons (
  id bigint generated always as identity,
  workspace_id uuid null,
  rule_id text not null,
  reason text not null,
  overridden bigint not null,
  constraint override_reasons_pk primary key (id),
  constraint override_reasons_key unique nulls not distinct (rule_id, workspace_id, reason),
  constraint override_reasons_rule_id_size check (octet_length(rule_id) between 1 and 200),
  -- lower case can take half as many bytes again
  constraint override_reasons_reason_size check (octet_length(reason) between 1 and 1500),
  constraint override_reasons_overridden_positive check (overridden >= 1)
);
comment on table platform.override_reasons is 'Projection of decision.recorded: each rule''s overrides by reason';
comment on column platform.override_reasons.reason is 'in lower case, with single blanks';
grant select, insert, update on platform.override_reasons to spectral_platform;

create table platform.override_pattern_decisions (
  id bigint generated always as identity,
  workspace_id uuid null,
  decision_id uuid not null,
  counted_at timestamptz not null default clock_timestamp(),
  constraint override_pattern_decisions_pk primary key (id),
  constraint override_pattern_decisions_key unique nulls not distinct (decision_id, workspace_id)
);
comment on table platform.override_pattern_decisions is 'The decisions counted so far: each counts once';
comment on column platform.override_pattern_decisions.counted_at is 'swept once no event can bring the decision again';
grant select, insert on platform.override_pattern_decisions to spectral_platform;

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
  constraint failure_clusters_failures_array check (jsonb_typeof(failures) = 'array'
    and jsonb_array_length(failures) between 1 and 50),
  constraint failure_clusters_failure_count_positive check (failure_count >= 1),
  constraint failure_clusters_severity check (severity in ('low', 'medium', 'high', 'critical')),
  constraint failure_clusters_seen check (isfinite(first_seen_at) and isfinite(last_seen_at)
    and first_seen_at <= last_seen_at)
);
comment on table platform.failure_clusters is 'Failures of one signature by kind; each detection raises revision';
comment on column platform.failure_clusters.failures is 'array of {kind, count, example}, by kind';
comment on column platform.failure_clusters.failure_count is 'the sum of the counts';
grant select, insert, update (revision, failures, failure_count, severity, first_seen_at, last_seen_at)
  on platform.failure_clusters to spectral_platform;

create table platform.memories (
  memory_id uuid not null,
  workspace_id uuid null,
  scope text not null,
  statement text not null,
  observations bigint not null,
  version bigint not null,
  recorded_at timestamptz not null,
  promoted_at timestamptz null,
  retired_at timestamptz null,
  constraint memories_pk primary key (memory_id),
  constraint memories_scope check (scope in ('agent', 'workspace')),
  constraint memories_statement_size check (octet_length(statement) between 1 and 2000),
  constraint memories_observations_positive check (observations >= 1),
  constraint memories_version_positive check (version >= 1)
);
comment on table platform.memories is
  'What agents have learned: working until it is promoted, and in the end retired. What is recorded after that is a '
    'new memory.';
comment on column platform.memories.observations is 'how often the statement was recorded';
comment on column platform.memories.version is 'counts the changes of the memory from 1';
create unique index memories_statement_once on platform.memories (scope, statement, workspace_id) nulls not distinct
  where retired_at is null;
grant select, insert,
  update (observations, version, promoted_at, retired_at) on platform.memories to spectral_platform;

create table platform.curation_decisions (
  decision_id uuid not null,
  workspace_id uuid null,
  candidate_id uuid not null,
  verdict text not null,
  note text not null,
  decided_by text not null,
  decided_at timestamptz not null,
  outcome text not null default 'pending',
  outcome_reason text null,
  outcome_at timestamptz null,
  constraint curation_decisions_pk primary key (decision_id),
  constraint curation_decisions_verdict check (verdict in ('approve', 'reject')),
  constraint curation_decisions_note_size check (octet_length(note) <= 2000),
  constraint curation_decisions_decided_by_size check (octet_length(decided_by) between 1 and 200),
  constraint curation_decisions_decided_at_finite check (isfinite(decided_at)),
  constraint curation_decisions_outcome check (outcome in ('pending', 'applied', 'refused')),
  constraint curation_decisions_outcome_at check ((outcome = 'pending') = (outcome_at is null)),
  constraint curation_decisions_outcome_reason check ((outcome = 'refused') = (outcome_reason is not null)),
  constraint curation_decisions_outcome_reason_size check (octet_length(outcome_reason) between 1 and 500)
);
comment on table platform.curation_decisions is 'Curators'' decisions on worlds'' rule candidates, and their outcome';
comment on column platform.curation_decisions.candidate_id is 'of worlds.rule_candidates, another context''s table';
comment on column platform.curation_decisions.decided_at is 'orders the decisions on one candidate';
comment on column platform.curation_decisions.outcome is 'pending until worlds has said what became of the decision';
create index curation_decisions_by_candidate on platform.curation_decisions (candidate_id, decided_at);
grant select, insert, update (outcome, outcome_reason, outcome_at) on platform.curation_decisions to spectral_platform;

create table platform.conversations (
  conversation_id uuid not null,
  workspace_id uuid null,
  trigger_event_id uuid null,
  created_at timestamptz not null,
  constraint conversations_pk primary key (conversation_id)
);
comment on table platform.conversations is 'What agent tasks belong to: begun by a person who asked, or for an event';
comment on column platform.conversations.trigger_event_id is
  'core.outbox.id of the event that caused a proactive conversation; no foreign key: the outbox is partitioned one '
    'day, and its rows go before these';
grant select, insert on platform.conversations to spectral_platform;

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
  approved_by text null,
  approved_at timestamptz null,
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
  constraint agent_tasks_result_object check (jsonb_typeof(result) = 'object'
    and octet_length(result::text) <= 1048576),
  constraint agent_tasks_reason_of_failure check ((status = 'failed') = (failure_reason is not null)),
  constraint agent_tasks_texts_size check (
    octet_length(failure_reason) between 1 and 4000 and octet_length(last_error) between 1 and 4000
    and octet_length(approval_question) between 1 and 4000
    and octet_length(approved_by) between 1 and 200 and octet_length(cancel_requested_by) between 1 and 200),
  constraint agent_tasks_approval_asked check (num_nulls(approval_gate, approval_question,
    approval_requested_at) in (0, 3)),
  constraint agent_tasks_approved check (num_nulls(approved_by, approved_at) in (0, 2)
    and (approved_by is null or approval_gate is not null)),
  constraint agent_tasks_awaits_approval check (status <> 'awaiting_approval' or approval_gate is not null
    and approved_by is null),
  constraint agent_tasks_cancel_requested check (num_nulls(cancel_requested_by, cancel_requested_at) in (0, 2)),
  constraint agent_tasks_run_counted check (run >= 0 and tries >= 0 and tries <= run),
  constraint agent_tasks_run_dispatched check ((run = 0) = (dispatch_event_id is null)
    and (status <> 'running' or run > 0)),
  constraint agent_tasks_retained check (retain_until > created_at)
);
comment on table platform.agent_tasks is
  'Work of agents, as business state; core.outbox carries agent.task.dispatched, '
    'which says that a task awaits a worker.';
comment on column platform.agent_tasks.executor is 'by name, what does the work';
comment on column platform.agent_tasks.steps is 'the finished steps in order: {name, result, run, done_at}';
comment on column platform.agent_tasks.last_error is 'what the latest run that did not come to an end said';
comment on column platform.agent_tasks.approval_gate is 'the latest approval asked for, as the executor names it';
comment on column platform.agent_tasks.run is 'counts the runs; only the latest may write, while the task is running';
comment on column platform.agent_tasks.tries is 'runs since the task was last dispatched or a step was done';
comment on column platform.agent_tasks.dispatch_event_id is 'core.outbox.id of the event that began the latest run';
comment on column platform.agent_tasks.retain_until is 'not swept before';
create index agent_tasks_conversation_id on platform.agent_tasks (conversation_id);
grant select, insert, update on platform.agent_tasks to spectral_platform;

-- Each table shows and takes the rows of the workspace that is set, none if none is.
-- +goose StatementBegin
do $$
declare
  v_table text;
begin
  foreach v_table in array array['system_cards', 'decisions', 'override_patterns', 'override_reasons',
    'override_pattern_decisions', 'failure_clusters', 'memories', 'curation_decisions', 'conversations',
    'agent_tasks'] loop
    execute format('alter table platform.%I enable row level security', v_table);
    execute format('create policy %I on platform.%I to spectral_platform
        using (workspace_id is not distinct from nullif(current_setting(''spectral.workspace_id'', true), '''')::uuid)
        with check (workspace_id is not distinct from nullif(current_setting(''spectral.workspace_id'', '
          'true), '''')::uuid)',
      v_table || '_workspace', v_table);
  end loop;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create function platform.retention_delete_agent_tasks(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.agent_task_id) into v_ids
  from (select t.agent_task_id from platform.agent_tasks t where t.agent_task_id > v_after
    order by t.agent_task_id limit p_limit) p;
  delete from platform.agent_tasks t
  where t.agent_task_id = any (array(select d.agent_task_id from platform.agent_tasks d
    where d.agent_task_id > v_after and d.agent_task_id <= v_ids[cardinality(v_ids)]
      and d.retain_until <= clock_timestamp() and d.status in ('succeeded', 'failed', 'cancelled')
    for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
create function platform.retention_delete_override_pattern_decisions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_gone constant timestamptz := (core.retention_window('event_handled')).gone;
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.decision_id) into v_ids
  from (select c.decision_id from platform.override_pattern_decisions c where c.decision_id > v_after
    order by c.decision_id limit p_limit) p;
  delete from platform.override_pattern_decisions c
  where c.ctid = any (array(select d.ctid from platform.override_pattern_decisions d
    where d.decision_id > v_after and d.decision_id <= v_ids[cardinality(v_ids)] and d.counted_at <= v_gone
    for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('platform.agent_tasks', 'platform.conversations', 'platform.curation_decisions',
  'platform.memories', 'platform.failure_clusters', 'platform.override_pattern_decisions', 'platform.override_reasons',
  'platform.override_patterns', 'platform.decisions', 'platform.system_cards');
drop function platform.retention_delete_agent_tasks, platform.retention_delete_override_pattern_decisions;
drop table platform.agent_tasks, platform.conversations, platform.curation_decisions, platform.memories,
  platform.failure_clusters, platform.override_pattern_decisions, platform.override_reasons,
  platform.override_patterns, platform.decisions, platform.system_cards;
drop schema platform;
