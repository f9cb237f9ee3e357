-- name: RegisterWorker :one
-- The empty text says that no other live worker is in the way.
select coalesce(core.worker_register(@worker::uuid, @generation::bigint, @name::text, @handlers::jsonb), '')::text as difference;

-- name: LeaveWorker :exec
select core.worker_leave(@worker::uuid, @channels::text[]);

-- name: ProbeWorkers :one
-- What there is to find out about workers that may be gone: in how many seconds a verdict is due, and in how
-- many the first lease runs out. -1 stands for nobody being gone, and for no lease.
select coalesce(core.workers_probe(@worker::uuid, @grace_seconds::double precision), -1)::double precision as verdict_in,
  coalesce(core.lease_expires_in(), -1)::double precision as expiry_in;

-- name: WriteJournal :exec
select core.claim_journal_write(@worker::uuid, @event_type::text, @runner::integer, @generation::bigint, @ids::uuid[],
  @alone::boolean, nullif(@handler::text, ''));

-- name: Verdict :many
-- The nil UUID stands for no workspace, the empty text for no target, no trace and no one handler.
select c.event_id::uuid as event_id, c.event_type::text as event_type, c.event_version::integer as event_version,
  c.occurred_at::timestamptz as occurred_at, c.source::text as source, coalesce(c.target, '')::text as target,
  c.content_class::text as content_class,
  coalesce(c.workspace_id, '00000000-0000-0000-0000-000000000000')::uuid as workspace_id,
  c.payload::text as payload, c.idempotency_key::text as idempotency_key,
  coalesce(c.trace_context, '')::text as trace_context, c.attempts::integer as attempts, c.available_at::timestamptz as available_at,
  c.handler_failures::text as handler_failures, c.crashes::integer as crashes,
  coalesce(c.handler, '')::text as handler, c.restarted::boolean as restarted
from core.claim_verdict(@generation::bigint, @event_types::text[], @grace_seconds::double precision) as c;

-- name: WorkerDifference :one
-- The empty text says that no live worker is in the way.
select coalesce(core.worker_difference(@worker::uuid, @generation::bigint, @handlers::jsonb), '')::text as difference;

-- name: WorkersLost :many
select l.worker_id::uuid as worker_id, l.name::text as name, l.gone_at::timestamptz as gone_at, l.in_hand::uuid[] as in_hand
from core.workers_lost(@grace_seconds::double precision) as l;

-- name: MeasureAcks :one
-- -1: another worker has just done it.
select coalesce(core.ack_measure(), -1)::integer as measured;
