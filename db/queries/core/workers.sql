-- name: RegisterWorker :one
-- The empty text says that no other live worker is in the way.
select coalesce(core.worker_register(@worker::uuid, @generation::bigint, @name::text,
  @handlers::jsonb), '')::text as difference;

-- name: WorkerStopping :exec
select core.worker_stopping(@worker::uuid, @generation::bigint, @name::text);

-- name: UnregisterWorker :exec
select core.worker_unregister(@worker::uuid, @channels::text[]);

-- name: ProbeWorkers :one
-- In how many seconds there is something to reap: of a dead worker, or a lease that runs out. -1: nothing.
select coalesce(least(core.workers_probe(@worker::uuid, @grace_seconds::double precision), core.lease_expires_in()),
  -1)::double precision as due_in;

-- name: WriteJournal :exec
select core.claim_journal_write(@worker::uuid, @event_type::text, @runner::integer, @ids::uuid[]);

-- name: WorkerDifference :one
-- The empty text says that no live worker is in the way.
select coalesce(core.worker_difference(@worker::uuid, @generation::bigint, @handlers::jsonb), '')::text as difference;

-- name: SampleLatency :one
-- -1: another worker has just done it.
select coalesce(core.latency_sample(), -1)::integer as sampled;
