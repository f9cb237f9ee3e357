-- name: IndexScan :exec
-- A scan that finished earlier never overwrites: events may come in any order, and again. Of two that finished at the
-- same time the higher id stands.
insert into worlds.scan_index (workspace_id, subject, scan_id, finished_at, finding_kinds, finding_count)
values (@workspace_id, @subject, @scan_id, @finished_at, @finding_kinds, @finding_count)
on conflict (subject, workspace_id) do update
  set scan_id = excluded.scan_id, finished_at = excluded.finished_at,
      finding_kinds = excluded.finding_kinds, finding_count = excluded.finding_count
  where (scan_index.finished_at, scan_index.scan_id) < (excluded.finished_at, excluded.scan_id);

-- name: IndexFindings :exec
insert into worlds.scan_index_findings (workspace_id, subject, kind, scan_id, finished_at, occurrences)
select sqlc.narg('workspace_id')::uuid, @subject::text, f.kind, @scan_id::uuid, @finished_at::timestamptz, f.occurrences
from (select unnest(@kinds::text[]) as kind, unnest(@occurrences::bigint[]) as occurrences) f
on conflict (subject, workspace_id, kind) do update
  set scan_id = excluded.scan_id, finished_at = excluded.finished_at, occurrences = excluded.occurrences
  where (scan_index_findings.finished_at, scan_index_findings.scan_id) < (excluded.finished_at, excluded.scan_id);

-- name: SearchScans :many
-- The subjects whose last scan found something of the kind.
select i.subject, i.scan_id, i.finished_at, f.occurrences, i.finding_kinds as kinds, i.finding_count as total
from worlds.scan_index_findings f
join worlds.scan_index i on i.subject = f.subject and i.workspace_id is not distinct from f.workspace_id
  and i.scan_id = f.scan_id
where f.kind = @kind and f.workspace_id is not distinct from @workspace_id
order by f.occurrences desc, i.subject
limit @most;
