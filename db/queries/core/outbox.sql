-- name: Publish :one
select core.outbox_publish_event(sqlc.narg(event_id)::uuid, @occurred_at::timestamptz, @event_type::text, @source::text,
  @payload::jsonb, @event_version::integer, nullif(@target::text, ''), sqlc.narg(workspace_id)::uuid,
  nullif(@idempotency_key::text, ''), nullif(@trace_context::text, ''), @available_at::timestamptz, @generation::bigint,
  null, null, nullif(@cause_id::uuid, '00000000-0000-0000-0000-000000000000'))::uuid as id;

-- name: PublishRows :one
-- The empty text stands for no id, target, workspace, key and trace. Ids and payloads come as text, which the driver
-- encodes twice as fast.
select core.outbox_publish_rows(cast(array_replace(@event_ids::text[], '', null) as uuid[]),
  @occurred_at::timestamptz[], @event_types::text[], @sources::text[], cast(@payloads::text[] as jsonb[]),
  @event_versions::integer[], array_replace(@targets::text[], '', null),
  cast(array_replace(@workspace_ids::text[], '', null) as uuid[]), array_replace(@idempotency_keys::text[], '', null),
  array_replace(@trace_contexts::text[], '', null),
  array_fill(@available_at::timestamptz, array[cardinality(@event_types::text[])]),
  array_fill(@generation::bigint, array[cardinality(@event_types::text[])]), null, null,
  nullif(@cause_id::uuid, '00000000-0000-0000-0000-000000000000'))::uuid[] as ids;

-- name: Poll :many
-- Year 1 stands for no time, and the empty text for no type. It can do what ProbeWorkers does too.
select l.passed::boolean as passed, coalesce(l.event_type, '')::text as event_type,
  coalesce(l.oldest_due, '0001-01-01 00:00:00+00')::timestamptz as oldest_due,
  coalesce(l.next_in, -1)::double precision as next_in, coalesce(l.crashed, false)::boolean as crashed,
  coalesce((select least(core.workers_probe(@worker::uuid, @grace_seconds::double precision), core.lease_expires_in())
    where @probe::boolean), -1)::double precision as due_in
from core.outbox_barrier_poll(@channels::text[], @generation::bigint, @event_types::text[], @watermarks::timestamptz[],
  cast(@held::text[] as uuid[]), @held_at::timestamptz[]) as l;

-- name: Claim :many
-- The nil UUID stands for no workspace, the empty text for no target and no trace.
-- Documents come as text: jsonb is parsed by the driver, and what Go cannot parse would fail the claim.
select c.event_id::uuid as event_id, c.event_version::integer as event_version,
  c.occurred_at::timestamptz as occurred_at, c.source::text as source, coalesce(c.target, '')::text as target,
  c.content_class::text as content_class,
  coalesce(c.workspace_id, '00000000-0000-0000-0000-000000000000')::uuid as workspace_id,
  c.payload::text as payload, c.idempotency_key::text as idempotency_key,
  coalesce(c.trace_context, '')::text as trace_context, c.attempts::integer as attempts,
  c.available_at::timestamptz as available_at, c.handler_failures::text as handler_failures,
  c.relayed::boolean as relayed, c.replayed::boolean as replayed,
  coalesce(array_to_string(c.breakers, ' '), '')::text as breakers
from core.outbox_claim(@generation::bigint, @event_type::text, @row_limit::integer, @watermark::timestamptz,
  @worker::uuid, @crashed::boolean, nullif(@kept_by::timestamptz, '0001-01-01 00:00:00+00'),
  nullif(@probe::text, '')) as c;

-- name: Wait :many
-- No tokens: the rows are not leased.
select w::uuid as id from core.outbox_wait(@generation::bigint, @handler::text, @ids::uuid[],
  @occurred_ats::timestamptz[], case when cardinality(@tokens::uuid[]) > 0 then @tokens::uuid[] end) as w;

-- name: Handled :one
select exists (select from core.event_handled h
  where h.handler_name = @handler_name and h.idempotency_key = @idempotency_key)::boolean as handled;

-- name: SampleWatermark :one
-- Year 1 stands for no time.
select coalesce(f.oldest, '0001-01-01 00:00:00+00')::timestamptz as oldest, f.lowest_running::bigint as lowest_running,
  f.sampled_at::timestamptz as sampled_at, f.sample_id::bigint as sample_id
from core.outbox_watermark(@generation::bigint, @event_type::text, @watermark::timestamptz) as f;

-- name: Deliver :one
select core.outbox_deliver(@ids::uuid[], @occurred_ats::timestamptz[])::integer as settled;

-- name: Record :one
-- Records what becomes of a row whose handlers did not all succeed. Of a leased one the
-- token matters, of a row-locked one when it was due.
select case
  when not @leased::boolean and @failed::boolean then core.outbox_fail(@id::uuid, @occurred_at::timestamptz,
    @available_at::timestamptz, @last_error::text, @handler_failures::jsonb)
  when not @leased then core.outbox_retry(@id, @occurred_at, @available_at, @delay_seconds::double precision,
    @last_error, @handler_failures, @counted::boolean)
  when @failed then core.outbox_fail_leased(@id, @occurred_at, @last_error, @handler_failures, @counted, @token::uuid)
  else core.outbox_retry_leased(@id, @occurred_at, @delay_seconds, @last_error, @handler_failures, @counted, @token)
end::boolean as held;

-- name: AddFailedAttempts :exec
select core.failed_attempts_add(@id::uuid, @occurred_at::timestamptz, @worker::text, @attempts::jsonb);

-- name: Isolate :many
select i.event_id::uuid as event_id, coalesce(i.outcome, '')::text as outcome, i.reason::text as reason,
  coalesce(i.source, '')::text as source, coalesce(i.target, '')::text as target, i.attempts::integer as attempts
from core.outbox_isolate(@generation::bigint, @event_type::text, @row_limit::integer, @watermark::timestamptz,
  @crashed::boolean, @step::text, @again::boolean) as i;

-- name: GiveUp :one
-- The nil UUID stands for no token. The empty text says that the row is not the worker's any more.
select coalesce(core.outbox_give_up(@id::uuid, @occurred_at::timestamptz,
  nullif(@token::uuid, '00000000-0000-0000-0000-000000000000'), @reason::text, @quarantine::boolean, @started::text[]),
  '')::text
  as outcome;

-- name: Progress :one
-- What became of one workspace's events since an id made at that time (ids are time-ordered), and
-- how long the latest of those delivered took from insert to settlement, in seconds.
select c.published, c.delivered, c.failed,
  coalesce(t.quantiles[1], 0)::double precision as p50, coalesce(t.quantiles[2], 0)::double precision as p99
from
  (select count(*) as published, count(*) filter (where o.status = 'delivered') as delivered,
          count(*) filter (where o.status = 'failed') as failed
   from core.outbox o where o.id >= @since::uuid and o.workspace_id = @workspace_id::uuid) c,
  (select percentile_cont(array[0.5, 0.99]) within group (order by l.seconds) as quantiles
   from (select extract(epoch from o.delivered_at - o.created_at)::double precision as seconds
         from core.outbox o
         where o.id >= @since::uuid and o.workspace_id = @workspace_id::uuid and o.status = 'delivered'
         order by o.id desc limit 10000) l) t;

-- name: Trail :many
-- What became of a workspace's events since an id made at that time, in the order they were published.
select o.id, o.event_type, o.event_version, o.status, coalesce(o.last_error, '')::text as last_error,
  coalesce((select array_agg(h.handler_name order by h.handler_name) from core.event_handled as h
            where h.idempotency_key = o.idempotency_key), '{}')::text[] as handled_by
from core.outbox as o
where o.id >= @since::uuid and o.workspace_id = @workspace_id::uuid
order by o.id;
