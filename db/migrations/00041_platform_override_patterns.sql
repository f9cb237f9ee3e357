-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table platform.override_patterns (
  workspace_id uuid null,
  rule_id text not null,
  followed bigint not null,
  overridden bigint not null,
  first_decided_at timestamptz not null,
  last_decided_at timestamptz not null,
  constraint override_patterns_key unique nulls not distinct (rule_id, workspace_id),
  constraint override_patterns_rule_id_size check (octet_length(rule_id) between 1 and 200),
  constraint override_patterns_counts_possible check (followed >= 0 and overridden >= 0 and followed + overridden >= 1),
  constraint override_patterns_times_in_order check (first_decided_at <= last_decided_at)
);
comment on table platform.override_patterns is 'Projection of decision.recorded: how often the proposals of each rule were followed and overridden.';
alter table platform.override_patterns enable row level security;
create policy override_patterns_workspace on platform.override_patterns to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on platform.override_patterns to spectral_platform;

create table platform.override_reasons (
  workspace_id uuid null,
  rule_id text not null,
  reason text not null,
  overridden bigint not null,
  first_decided_at timestamptz not null,
  last_decided_at timestamptz not null,
  constraint override_reasons_key unique nulls not distinct (rule_id, workspace_id, reason),
  constraint override_reasons_rule_id_size check (octet_length(rule_id) between 1 and 200),
  -- lower case can take half as many bytes again
  constraint override_reasons_reason_size check (octet_length(reason) between 1 and 1500),
  constraint override_reasons_overridden_positive check (overridden >= 1),
  constraint override_reasons_times_in_order check (first_decided_at <= last_decided_at)
);
comment on table platform.override_reasons is 'Projection of decision.recorded: the overrides of each rule by the reason given.';
comment on column platform.override_reasons.reason is 'in lower case, with single blanks: reasons that differ in nothing else are one';
alter table platform.override_reasons enable row level security;
create policy override_reasons_workspace on platform.override_reasons to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on platform.override_reasons to spectral_platform;

create table platform.override_pattern_decisions (
  workspace_id uuid null,
  decision_id uuid not null,
  constraint override_pattern_decisions_key unique nulls not distinct (decision_id, workspace_id)
);
comment on table platform.override_pattern_decisions is 'The decisions that override_patterns and override_reasons have counted: each counts once, however often it is told.';
alter table platform.override_pattern_decisions enable row level security;
create policy override_pattern_decisions_workspace on platform.override_pattern_decisions to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert on platform.override_pattern_decisions to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.override_patterns) then
    raise exception 'platform.override_patterns is not empty: going down would lose counts';
  end if;
  if exists (select from platform.override_reasons) then
    raise exception 'platform.override_reasons is not empty: going down would lose counts';
  end if;
  if exists (select from platform.override_pattern_decisions) then
    raise exception 'platform.override_pattern_decisions is not empty: going down would lose what has been counted';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.override_patterns;
drop table platform.override_reasons;
drop table platform.override_pattern_decisions;
