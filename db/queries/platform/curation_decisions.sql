-- name: AddCurationDecision :one
-- The time orders the decisions on a candidate: a clock that is behind does not make a later decision earlier.
insert into platform.curation_decisions (decision_id, workspace_id, candidate_id, verdict, note, decided_by, decided_at)
values (@decision_id, @workspace_id, @candidate_id, @verdict, @note, @decided_by, greatest(@decided_at::timestamptz, (
  select max(d.decided_at) + interval '1 microsecond' from platform.curation_decisions d
  where d.workspace_id is not distinct from @workspace_id and d.candidate_id = @candidate_id)))
returning decided_at;

-- name: LockCurationDecision :one
select candidate_id, verdict, note, decided_by, decided_at, outcome, outcome_reason,
  outcome_at from platform.curation_decisions
where workspace_id is not distinct from @workspace_id and decision_id = @decision_id
for update;

-- name: SaveCurationOutcome :exec
update platform.curation_decisions
set outcome = @outcome, outcome_reason = @outcome_reason, outcome_at = @outcome_at
where workspace_id is not distinct from @workspace_id and decision_id = @decision_id;
