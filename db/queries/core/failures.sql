-- name: Failures :many
-- The nil UUID stands for no workspace, the empty text for no target, trace and error, year 1 for no time. Documents
-- come as text.
select f.event_id::uuid as event_id, f.event_type::text as event_type, f.event_version::integer as event_version,
  f.occurred_at::timestamptz as occurred_at, coalesce(f.target, '')::text as target,
  coalesce(f.workspace_id, '00000000-0000-0000-0000-000000000000')::uuid as workspace_id, f.payload::text as payload,
  f.idempotency_key::text as idempotency_key, coalesce(f.trace_context, '')::text as trace_context,
    f.attempts::integer as attempts,
  coalesce(f.last_error, '')::text as last_error,
  coalesce(f.first_failed_at, '0001-01-01 00:00:00+00')::timestamptz as first_failed_at,
  coalesce(f.failed_at, '0001-01-01 00:00:00+00')::timestamptz as failed_at,
  coalesce(f.discarded_at, '0001-01-01 00:00:00+00')::timestamptz as discarded_at,
    f.prior_replays::integer as prior_replays
from core.outbox_failures(@source::text, @row_limit::integer, sqlc.narg('after_failed_at')::timestamptz,
  sqlc.narg('after_id')::uuid,
  sqlc.narg('after_occurred_at')::timestamptz) as f;
