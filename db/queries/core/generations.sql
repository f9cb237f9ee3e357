-- name: GenerationStatus :many
-- No generation: all of them. Year 1 stands for no time.
select s.generation::bigint as generation, s.status::text as status,
  coalesce(s.registered_at, '0001-01-01 00:00:00+00')::timestamptz as registered_at,
  coalesce(s.draining_at, '0001-01-01 00:00:00+00')::timestamptz as draining_at,
  coalesce(s.closed_at, '0001-01-01 00:00:00+00')::timestamptz as closed_at,
  coalesce(s.retired_at, '0001-01-01 00:00:00+00')::timestamptz as retired_at,
  s.due::bigint as due, s.scheduled::bigint as scheduled, s.in_flight::bigint as in_flight, s.failed::bigint as failed,
  coalesce(s.oldest_due, '0001-01-01 00:00:00+00')::timestamptz as oldest_due,
  coalesce(s.next_scheduled, '0001-01-01 00:00:00+00')::timestamptz as next_scheduled,
  coalesce(s.last_scheduled, '0001-01-01 00:00:00+00')::timestamptz as last_scheduled,
  s.workers::bigint as workers, s.publishing_default::boolean as publishing_default
from core.generation_status(sqlc.narg('generation')::bigint) as s;

-- name: GenerationBacklog :many
-- Year 1 stands for no time.
select b.event_type::text as event_type, b.due::bigint as due, b.scheduled::bigint as scheduled,
  b.in_flight::bigint as in_flight,
  coalesce(b.next_scheduled, '0001-01-01 00:00:00+00')::timestamptz as next_scheduled,
  coalesce(b.last_scheduled, '0001-01-01 00:00:00+00')::timestamptz as last_scheduled,
  b.workers::bigint as workers, b.paused::boolean as paused
from core.generation_backlog(@generation::bigint) as b;

-- name: RegisterGenerationBy :one
-- The empty text stands for the login.
select core.generation_register(@generation::bigint, nullif(@acted_by::text, ''))::text as status;

-- name: DrainGeneration :one
-- The empty text stands for the login.
select core.generation_drain(@generation::bigint, nullif(@acted_by::text, ''), @force::boolean)::text as status;

-- name: RetireGeneration :one
-- The empty text stands for the login.
select core.generation_retire(@generation::bigint, nullif(@acted_by::text, ''))::text as stands;

-- name: Adopt :one
-- The empty text stands for the login. No event types: all of them.
select core.outbox_adopt(@from_generation::bigint, @to_generation::bigint, @row_limit::integer,
  nullif(@acted_by::text, ''),
  sqlc.narg('event_types')::text[], @before::timestamptz)::integer as moved;

-- name: Now :one
select clock_timestamp()::timestamptz as now;

-- name: Adoptable :many
-- No event types: all of them.
select a.event_type::text as event_type, a.due::bigint as due, a.scheduled::bigint as scheduled,
  a.in_flight::bigint as in_flight,
  a.workers::bigint as workers, a.paused::boolean as paused, coalesce(a.target, '')::text as target
from core.outbox_adoptable(@from_generation::bigint, @to_generation::bigint, sqlc.narg('event_types')::text[]) as a;

-- name: GenerationState :one
select core.generation_state(@generation::bigint)::text as state;
