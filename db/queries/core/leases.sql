-- name: Lease :many
-- The nil UUID stands for no workspace, the empty text for no target and no trace.
-- Documents come as text: jsonb is parsed by the driver, and what Go cannot parse would fail the claim.
select c.event_id::uuid as event_id, c.event_type::text as event_type, c.event_version::integer as event_version,
  c.occurred_at::timestamptz as occurred_at, c.source::text as source, coalesce(c.target, '')::text as target,
  c.content_class::text as content_class,
  coalesce(c.workspace_id, '00000000-0000-0000-0000-000000000000')::uuid as workspace_id,
  c.payload::text as payload, c.idempotency_key::text as idempotency_key,
  coalesce(c.trace_context, '')::text as trace_context, c.attempts::integer as attempts,
  c.handler_failures::text as handler_failures, c.crashes::integer as crashes, c.claim_token::uuid as claim_token,
  c.handled::text[] as handled, c.available_at::timestamptz as available_at, c.replayed::boolean as replayed,
  coalesce(array_to_string(c.breakers, ' '), '')::text as breakers
from core.outbox_lease(@generation::bigint, @event_type::text, @row_limit::integer, @lease_seconds::double precision,
  @worker::text, @handlers::text[], @watermark::timestamptz, @crashed::boolean, nullif(@probe::text, '')) as c;

-- name: Heartbeat :many
-- The empty text notes no handler.
select h.token::uuid as token, h.held::boolean as held
from core.outbox_heartbeat(@ids::uuid[], @occurred_ats::timestamptz[], @tokens::uuid[],
  array(select nullif(n, '') from unnest(@handlers::text[]) with ordinality as t(n, i) order by i)) as h;

-- name: DeliverLeased :many
select t::uuid as token from core.outbox_deliver_leased(@ids::uuid[], @occurred_ats::timestamptz[],
  @tokens::uuid[]) as t;

-- name: Release :many
select t::uuid as token from core.outbox_release(@ids::uuid[], @occurred_ats::timestamptz[], @tokens::uuid[]) as t;

-- name: Reap :many
-- The nil UUID begins at the first row.
select r.event_id::uuid as event_id, r.event_type::text as event_type, r.generation::bigint as generation,
  r.attempts::integer as attempts,
  r.crashes::integer as crashes, r.failed::boolean as failed, r.reaped::boolean as reaped, r.reason::text as reason,
  coalesce(r.source, '')::text as source, coalesce(r.target, '')::text as target
from core.outbox_reap(@row_limit::integer, nullif(@after::uuid, '00000000-0000-0000-0000-000000000000'),
  @grace_seconds::double precision) as r;
