-- What is in flight is little, and found without a search. Not by claimed_at: a heartbeat then need not write
-- an index.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.outbox_in_flight;
create index concurrently outbox_in_flight on core.outbox (id, occurred_at)
  where status = 'in_flight' and deleted_at is null;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.outbox_in_flight;
reset lock_timeout;
