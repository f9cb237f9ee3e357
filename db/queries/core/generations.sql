-- name: GenerationBacklog :many
-- Year 1 stands for no time.
select b.event_type::text as event_type, b.due::bigint as due, b.scheduled::bigint as scheduled,
  b.in_flight::bigint as in_flight,
  coalesce(b.next_scheduled, '0001-01-01 00:00:00+00')::timestamptz as next_scheduled,
  coalesce(b.last_scheduled, '0001-01-01 00:00:00+00')::timestamptz as last_scheduled,
  b.workers::bigint as workers, b.paused::boolean as paused
from core.generation_backlog(@generation::bigint) as b;

-- name: GenerationState :one
select core.generation_state(@generation::bigint)::text as state;
