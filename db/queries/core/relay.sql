-- name: Relay :one
select r.id, r.path from core.relay r;

-- name: Relayed :one
select core.outbox_relayed(@ids::uuid[], @occurred_ats::timestamptz[], @stored::boolean[])::integer as relayed;

-- name: TakeRelayed :many
select t::uuid as id from core.outbox_relayed_take(@generation::bigint, @handler::text, @ids::uuid[],
  @occurred_ats::timestamptz[]) as t;

-- name: DeliverRelayed :many
select d.id::uuid as id, d.pending::boolean as pending from core.outbox_relayed_deliver(@handlers::text[], @ids::uuid[],
  @occurred_ats::timestamptz[]) as d;

-- name: FailRelayed :one
select f.available_at::timestamptz as available_at, f.attempts::integer as attempts,
  f.handler_failures::text as handler_failures, f.handled::text[] as handled
from core.outbox_relayed_fail(@id::uuid, @occurred_at::timestamptz, @handlers::text[]) as f;

-- name: ReturnRelayed :one
select core.outbox_relayed_return(@ids::uuid[], @occurred_ats::timestamptz[])::integer as returned;

-- name: RelayedSince :many
select s.event_type::text as event_type, s.first_at::timestamptz as first_at, s.now::timestamptz as now
from core.outbox_relayed_since(@generation::bigint, @event_types::text[]) as s;

-- name: ReturnLost :one
-- The nil UUID stands for no oldest event.
select core.outbox_relayed_return_lost(@generation::bigint, @event_type::text, @before::timestamptz,
  nullif(@oldest::uuid, '00000000-0000-0000-0000-000000000000'), @row_limit::integer)::integer as returned;
