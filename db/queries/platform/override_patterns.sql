-- name: RememberDecisions :many
-- Returns those that had not been counted. In order, so that two batches with the same decisions do not deadlock.
insert into platform.override_pattern_decisions (workspace_id, decision_id)
select sqlc.narg('workspace_id')::uuid, d.decision_id from (select unnest(@decision_ids::uuid[]) as decision_id) d
order by d.decision_id
on conflict (decision_id, workspace_id) do nothing
returning decision_id;

-- name: AddToPattern :exec
insert into platform.override_patterns (workspace_id, rule_id, followed, overridden)
values (@workspace_id, @rule_id, @followed, @overridden)
on conflict (rule_id, workspace_id) do update
  set followed = override_patterns.followed + excluded.followed,
      overridden = override_patterns.overridden + excluded.overridden;

-- name: AddToReason :exec
insert into platform.override_reasons (workspace_id, rule_id, reason, overridden)
values (@workspace_id, @rule_id, @reason, @overridden)
on conflict (rule_id, workspace_id, reason) do update
  set overridden = override_reasons.overridden + excluded.overridden;

-- name: GetPattern :one
select followed, overridden from platform.override_patterns
where rule_id = @rule_id and workspace_id is not distinct from @workspace_id;

-- name: ListReasons :many
select reason, overridden from platform.override_reasons
where rule_id = @rule_id and workspace_id is not distinct from @workspace_id
order by overridden desc, reason;
