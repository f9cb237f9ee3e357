-- name: RememberDecisions :many
-- Returns those that had not been counted. In order, so that two batches with the same decisions do not deadlock.
insert into worlds.rule_health_decisions (workspace_id, decision_id)
select sqlc.narg('workspace_id')::uuid, d.decision_id from (select unnest(@decision_ids::uuid[]) as decision_id) d
order by d.decision_id
on conflict (decision_id, workspace_id) do nothing
returning decision_id;

-- name: AddToHealth :exec
insert into worlds.rule_health (workspace_id, rule_id, followed, overridden)
values (@workspace_id, @rule_id, @followed, @overridden)
on conflict (rule_id, workspace_id) do update
  set followed = rule_health.followed + excluded.followed, overridden = rule_health.overridden + excluded.overridden;

-- name: GetHealth :one
select followed, overridden from worlds.rule_health
where rule_id = @rule_id and workspace_id is not distinct from @workspace_id;
