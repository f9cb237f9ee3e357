-- name: AddScan :exec
insert into worlds.scans (workspace_id, scan_id, subject, state, started_at)
values (@workspace_id, @scan_id, @subject, @state, @started_at);

-- name: LockScan :one
select subject, state, started_at, finished_at, findings, failure from worlds.scans
where scan_id = @scan_id and workspace_id is not distinct from @workspace_id
for update;

-- name: SaveScan :exec
update worlds.scans set state = @state, finished_at = @finished_at, findings = @findings, failure = @failure
where scan_id = @scan_id and workspace_id is not distinct from @workspace_id and state = 'running';
