-- name: RegisterWorker :one
-- The empty text says that no other live worker is in the way.
select coalesce(core.worker_register(@worker::uuid, @generation::bigint, @name::text,
  @handlers::jsonb, @effects::jsonb), '')::text as difference;

-- name: WorkerStopping :exec
select core.worker_stopping(@worker::uuid, @generation::bigint, @name::text);

-- name: UnregisterWorker :exec
select core.worker_unregister(@worker::uuid, @channels::text[]);

-- name: ProbeWorkers :one
-- In how many seconds there is something to reap: of a dead worker, or a lease that runs out. -1: nothing.
select coalesce(least(core.workers_probe(@worker::uuid, @grace_seconds::double precision), core.lease_expires_in()),
  -1)::double precision as due_in;

-- name: WriteJournal :exec
select core.claim_journal_write(@worker::uuid, @event_type::text, @runner::integer, @ids::uuid[],
  @started::text[]);

-- name: WorkerDifference :one
-- The empty text says that no live worker is in the way.
select coalesce(core.worker_difference(@worker::uuid, @generation::bigint, @handlers::jsonb), '')::text as difference;

-- name: SampleLatency :one
-- -1: another worker has just done it.
select coalesce(core.latency_sample(), -1)::integer as sampled;

-- name: Metrics :many
-- The empty text stands for no event type and no status, zero for no generation.
select m.metric::text as metric, coalesce(m.event_type, '')::text as event_type,
  coalesce(m.generation, 0)::bigint as generation, coalesce(m.status, '')::text as status,
  m.value::double precision as value
from core.metrics(@since::timestamptz) as m;

-- name: ActAsLogin :exec
-- Ends the role of the transaction, for what the login alone may see.
select pg_catalog.set_config('role', 'none', true);

-- name: SnapshotAge :one
-- How many seconds ago the oldest transaction with a snapshot began; -1 if the login may not see all sessions.
select case when pg_has_role(session_user, 'pg_read_all_stats', 'usage')
  then coalesce(extract(epoch from clock_timestamp() - min(a.xact_start)), 0) else -1 end::double precision as seconds
from pg_catalog.pg_stat_activity a
where a.backend_xmin is not null and a.datname = current_database() and a.pid <> pg_backend_pid();

-- name: AddStats :exec
select core.event_stats_add(@generation::bigint, @lines::jsonb, @seconds_ago::double precision);

-- name: TypesHeld :one
select core.types_held(@worker::uuid)::text[] as event_types;
