-- name: AddRuleCandidate :execrows
-- No row: the origin has a candidate already.
insert into worlds.rule_candidates (
  candidate_id, workspace_id, origin, origin_id, revision, statement, occurrences, confidence, proposed_at,
    updated_at)
values (@candidate_id, @workspace_id, @origin, @origin_id, @revision, @statement, @occurrences, @confidence,
  @proposed_at, @proposed_at)
on conflict (origin, origin_id, workspace_id) do nothing;

-- name: LockRuleCandidateOfOrigin :one
select candidate_id, origin, origin_id, revision, statement, occurrences, confidence, state, decision_id,
  decided_at from worlds.rule_candidates
where workspace_id is not distinct from @workspace_id and origin = @origin and origin_id = @origin_id
for update;

-- name: LockRuleCandidates :many
-- In the order in which facts of their origins take them.
select candidate_id, origin, origin_id, revision, statement, occurrences, confidence, state, decision_id,
  decided_at from worlds.rule_candidates
where workspace_id is not distinct from @workspace_id and candidate_id = any (@candidate_ids::uuid[])
order by origin collate "C", origin_id
for update;

-- name: SaveRuleCandidate :exec
update worlds.rule_candidates
set revision = @revision, statement = @statement, occurrences = @occurrences, confidence = @confidence,
    state = @state, decision_id = @decision_id, decided_at = @decided_at, updated_at = @updated_at
where workspace_id is not distinct from @workspace_id and candidate_id = @candidate_id;

-- name: AddCurationRuling :execrows
-- No row: the decision has been ruled on.
insert into worlds.curation_rulings (workspace_id, decision_id, candidate_id, outcome, reason, ruled_at)
values (@workspace_id, @decision_id, @candidate_id, @outcome, @reason, @ruled_at)
on conflict (decision_id, workspace_id) do nothing;
