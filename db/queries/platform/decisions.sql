-- name: InsertDecision :execrows
-- Nothing, where the decision is recorded already.
insert into platform.decisions (workspace_id, decision_id, rule_id, outcome, override_reason, decided_by, decided_at,
  recorded_at)
values (@workspace_id, @decision_id, @rule_id, @outcome, @override_reason, @decided_by, @decided_at, @recorded_at)
on conflict (decision_id, workspace_id) do nothing;

-- name: GetDecision :one
select rule_id, outcome, override_reason, decided_by, decided_at from platform.decisions
where decision_id = @decision_id and workspace_id is not distinct from @workspace_id;
