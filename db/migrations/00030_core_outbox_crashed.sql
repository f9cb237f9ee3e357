-- Rows that workers died of are claimed apart from the others, and found without a search.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.outbox_crashed;
create index concurrently outbox_crashed on core.outbox (generation, event_type, available_at)
  where status = 'pending' and deleted_at is null and crashes > 0;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.outbox_crashed;
reset lock_timeout;
