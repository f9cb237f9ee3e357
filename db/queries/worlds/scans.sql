-- name: AddScan :exec
insert into worlds.scans (workspace_id, scan_id, subject, started_at)
values (@workspace_id, @scan_id, @subject, @started_at);

-- name: LockScan :one
select subject, started_at, finished_at, findings from worlds.scans
where scan_id = @scan_id and workspace_id is not distinct from @workspace_id
for update;

-- name: SaveScan :exec
update worlds.scans set finished_at = @finished_at, findings = @findings
where scan_id = @scan_id and workspace_id is not distinct from @workspace_id and finished_at is null;
