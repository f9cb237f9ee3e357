-- Dead letters in the order in which they are read, few among the many that are delivered; by whom and for whom is
-- told without a look at the rows. Only what fails or is discarded writes these indexes. That claimed_at is in one makes
-- a heartbeat write the others of its row, the primary key and outbox_in_flight.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.outbox_failed;
drop index if exists core.outbox_discarded;
create index concurrently outbox_failed on core.outbox (claimed_at, id, occurred_at, source, workspace_id)
  where status = 'failed' and deleted_at is null;
create index concurrently outbox_discarded on core.outbox (claimed_at, id, occurred_at, source, workspace_id)
  where status = 'failed' and deleted_at is not null;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.outbox_discarded;
drop index if exists core.outbox_failed;
reset lock_timeout;
