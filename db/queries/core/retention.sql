-- name: RetentionSweep :many
-- No line: another transaction is sweeping. An empty next: it was the last page.
select s.rows::bigint as rows, coalesce(s.next, '{}')::text[] as next
from core.retention_sweep(@step::text, sqlc.narg(after)::text[], @page_rows::integer, @run_id::uuid,
  nullif(@swept_by::text, '')) as s;

-- name: RetentionBegin :one
select core.retention_begin(@interval_seconds::double precision)::double precision as seconds;

-- name: RetentionStatus :one
-- A null becomes empty or the year 1.
select coalesce(s.policy_fault, '')::text as policy_fault, s.failed_expiring::bigint as failed_expiring,
  coalesce(s.failed_expire_first_at, '0001-01-01 00:00:00+00')::timestamptz as failed_expire_first_at,
  coalesce(s.swept_at, '0001-01-01 00:00:00+00')::timestamptz as swept_at
from core.retention_status(@warn_days::integer) as s;

-- name: RetentionPolicies :many
select p.subject, p.content_class, p.active_ttl_days, p.tombstoned_grace_days, p.disposal,
  coalesce(d.to_tombstone, 0)::bigint as to_tombstone, coalesce(d.to_delete, 0)::bigint as to_delete,
    coalesce(d.estimated, false)::boolean as estimated
from core.retention_policies p left join core.retention_due() d on d.subject = p.subject
order by array_position(array['outbox_row', 'event_handled', 'operator_action'], p.subject);

-- name: MakePartitions :one
select core.outbox_partitions_ahead()::text[] as made;
