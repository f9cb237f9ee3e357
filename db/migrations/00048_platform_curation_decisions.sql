-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
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
comment on table platform.curation_decisions is 'What curators decided on worlds'' rule candidates, and what worlds made of it.';
comment on column platform.curation_decisions.candidate_id is 'of worlds.rule_candidates, which is another context''s: no foreign key';
comment on column platform.curation_decisions.decided_at is 'orders the decisions on one candidate: a later one has a later time';
comment on column platform.curation_decisions.outcome is 'pending until worlds has said what became of the decision';
create index curation_decisions_by_candidate on platform.curation_decisions (candidate_id, decided_at);
alter table platform.curation_decisions enable row level security;
create policy curation_decisions_workspace on platform.curation_decisions to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update (outcome, outcome_reason, outcome_at) on platform.curation_decisions to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from platform.curation_decisions) then
    raise exception 'platform.curation_decisions is not empty: going down would lose decisions';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.curation_decisions;
