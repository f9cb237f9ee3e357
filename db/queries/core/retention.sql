-- name: RetentionSweep :many
-- No lines: somebody else is sweeping.
select s.subject::text as subject, s.step::text as step, s.rows::bigint as rows, s.more::boolean as more
from core.retention_sweep(@max_rows::integer, @max_seconds::double precision, @run_id::uuid, nullif(@swept_by::text, ''),
  @walk_every_seconds::double precision) as s;

-- name: RetentionPreview :many
select p.subject::text as subject, p.step::text as step, p.rows::bigint as rows, p.more::boolean as more
from core.retention_preview(@max_rows::bigint, @max_seconds::double precision) as p;

-- name: RetentionDueIn :one
select core.retention_due_in(@interval_seconds::double precision)::double precision as seconds;

-- name: RetentionStatus :one
-- A null becomes empty, zero or the year 1.
select coalesce(s.policy_fault, '')::text as policy_fault, s.failed_expiring::bigint as failed_expiring,
  coalesce(s.failed_expire_first_at, '0001-01-01 00:00:00+00')::timestamptz as failed_expire_first_at,
  coalesce(s.run_id, '00000000-0000-0000-0000-000000000000')::uuid as run_id, coalesce(s.run_by, '')::text as run_by,
  coalesce(s.run_by_hand, false)::boolean as run_by_hand,
  coalesce(s.run_started_at, '0001-01-01 00:00:00+00')::timestamptz as run_started_at,
  coalesce(s.run_updated_at, '0001-01-01 00:00:00+00')::timestamptz as run_updated_at,
  coalesce(s.run_ended_at, '0001-01-01 00:00:00+00')::timestamptz as run_ended_at, coalesce(s.run_steps, '{}')::jsonb as run_steps
from core.retention_status(@warn_days::integer) as s;

-- name: RetentionPolicies :many
select p.subject, p.content_class, p.active_ttl_days, p.tombstoned_grace_days, p.disposal from core.retention_policies p;
