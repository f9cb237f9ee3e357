-- What operators did is listed by time, a page at a cost that does not grow with what they did in a year.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists core.operator_actions_acted_at;
-- it waits for transactions of others with older snapshots, and nobody queues behind it
set lock_timeout = 0;
create index concurrently operator_actions_acted_at on core.operator_actions (acted_at, id) where deleted_at is null;
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists core.operator_actions_acted_at;
reset lock_timeout;
