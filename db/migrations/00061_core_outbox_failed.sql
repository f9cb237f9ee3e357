-- Failed events, by the time they failed: written only when an event fails, is replayed or discarded.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.outbox_failed;
create index concurrently outbox_failed on core.outbox (claimed_at)
  where status = 'failed' and deleted_at is null;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.outbox_failed;
reset lock_timeout;
