-- name: ProjectCard :exec
-- An older or equal version never overwrites: events may come in any order, and again.
insert into platform.system_cards (workspace_id, card_id, version, title, snapshot)
values (@workspace_id, @card_id, @version, @title, @snapshot)
on conflict (workspace_id, card_id) do update
  set version = excluded.version, title = excluded.title, snapshot = excluded.snapshot, projected_at = clock_timestamp()
  where system_cards.version < excluded.version;

-- name: ListVersions :many
select card_id, version from platform.system_cards where workspace_id is not distinct from @workspace_id;

-- name: LatestCard :one
select card_id, version, title from platform.system_cards
where workspace_id is not distinct from @workspace_id
order by projected_at desc, card_id limit 1;
