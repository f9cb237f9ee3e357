-- The key has the workspace last: "is not distinct from", by which a row is found, serves no index, and the rest then does.
-- The tables after this one have the same order.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table platform.decisions (
  workspace_id uuid null,
  decision_id uuid not null,
  rule_id text not null,
  outcome text not null,
  override_reason text null,
  decided_by text not null,
  decided_at timestamptz not null,
  recorded_at timestamptz not null,
  constraint decisions_key unique nulls not distinct (decision_id, workspace_id),
  constraint decisions_rule_id_size check (octet_length(rule_id) between 1 and 200),
  constraint decisions_outcome_known check (outcome in ('followed', 'overridden')),
  constraint decisions_override_reason_given check ((outcome = 'overridden') = (override_reason is not null)),
  constraint decisions_override_reason_size check (octet_length(override_reason) between 1 and 1000),
  constraint decisions_decided_by_size check (octet_length(decided_by) between 1 and 200),
  constraint decisions_decided_at_finite check (isfinite(decided_at))
);
comment on table platform.decisions is 'What people and agents decided on the proposals of rules. A decision never changes: nobody may update it.';
comment on column platform.decisions.decided_by is 'the person or agent';
comment on column platform.decisions.override_reason is 'why the proposal was overridden; null if it was followed';
alter table platform.decisions enable row level security;
create policy decisions_workspace on platform.decisions to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert on platform.decisions to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.decisions) then
    raise exception 'platform.decisions is not empty: going down would lose decisions';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.decisions;
