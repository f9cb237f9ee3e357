-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table worlds.rule_candidates (
  candidate_id uuid not null,
  workspace_id uuid null,
  origin text not null,
  origin_id uuid not null,
  revision bigint not null,
  statement text not null,
  occurrences bigint not null,
  kinds bigint not null,
  confidence double precision not null,
  state text not null default 'proposed',
  decision_id uuid null,
  decided_at timestamptz null,
  proposed_at timestamptz not null,
  updated_at timestamptz not null,
  constraint rule_candidates_pk primary key (candidate_id),
  constraint rule_candidates_origin_once unique nulls not distinct (origin, origin_id, workspace_id),
  constraint rule_candidates_origin check (origin in ('failure_cluster', 'memory')),
  constraint rule_candidates_revision_not_negative check (revision >= 0),
  constraint rule_candidates_statement_size check (octet_length(statement) between 1 and 4000),
  constraint rule_candidates_occurrences_positive check (occurrences >= 1),
  constraint rule_candidates_kinds_positive check (kinds >= 1),
  constraint rule_candidates_confidence check (confidence between 0 and 1),
  constraint rule_candidates_state check (state in ('proposed', 'approved', 'rejected')),
  constraint rule_candidates_decided check ((state = 'proposed') = (decision_id is null) and (state = 'proposed') = (decided_at is null))
);
comment on table worlds.rule_candidates is 'Rules that failure clusters and memories suggest, and what curators decided on them.';
comment on column worlds.rule_candidates.origin_id is 'the cluster or memory of platform, which is another context''s: no foreign key';
comment on column worlds.rule_candidates.revision is 'of the origin, whose fact stands here; 0 if that fact came without one';
comment on column worlds.rule_candidates.occurrences is 'failures of the cluster, or observations of the memory';
comment on column worlds.rule_candidates.kinds is 'different kinds among the occurrences';
comment on column worlds.rule_candidates.decision_id is 'the newest decision that was applied';
alter table worlds.rule_candidates enable row level security;
create policy rule_candidates_workspace on worlds.rule_candidates to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update (revision, statement, occurrences, kinds, confidence, state, decision_id, decided_at, updated_at)
  on worlds.rule_candidates to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from worlds.rule_candidates) then
    raise exception 'worlds.rule_candidates is not empty: going down would lose candidates';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.rule_candidates;
