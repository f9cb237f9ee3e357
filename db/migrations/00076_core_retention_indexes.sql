-- What the sweep finds rows by, and nothing that publishing, claiming or delivering an ordinary event writes: tombstones, which
-- only the sweep and discarding make, and the keys of callers' own that are not delivered yet. The default key is the event's id,
-- and found by the primary key.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.outbox_tombstoned;
create index concurrently outbox_tombstoned on core.outbox (deleted_at)
  where deleted_at is not null;
drop index if exists core.outbox_own_keys;
create index concurrently outbox_own_keys on core.outbox (idempotency_key)
  where status <> 'delivered' and idempotency_key <> id::text;
drop index if exists core.event_handled_tombstoned;
create index concurrently event_handled_tombstoned on core.event_handled (deleted_at)
  where deleted_at is not null;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.event_handled_tombstoned;
drop index if exists core.outbox_own_keys;
drop index if exists core.outbox_tombstoned;
reset lock_timeout;
