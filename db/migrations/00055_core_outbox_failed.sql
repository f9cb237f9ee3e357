-- Dead letters in the order in which operators read them, the latest failure last: few among the many that are
-- delivered. Written by those who fail or discard a row alone. That claimed_at is in an index makes a heartbeat write
-- the indexes of its row, which are the primary key and outbox_in_flight.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.outbox_failed;
drop index if exists core.outbox_discarded;
create index concurrently outbox_failed on core.outbox (claimed_at, id, occurred_at)
  where status = 'failed' and deleted_at is null;
create index concurrently outbox_discarded on core.outbox (claimed_at, id, occurred_at)
  where status = 'failed' and deleted_at is not null;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.outbox_discarded;
drop index if exists core.outbox_failed;
reset lock_timeout;
