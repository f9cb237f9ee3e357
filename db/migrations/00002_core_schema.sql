-- The schema core, and what a function made later allows by default: nothing to PUBLIC.

-- +goose Up
set local lock_timeout = '5s';
create schema core authorization spectral_owner;
set local role spectral_owner;
alter default privileges for role spectral_owner revoke execute on functions from public;
comment on schema core is 'The event substrate: outbox, dedup log, deployment generations.';
grant usage on schema core to spectral_publisher, spectral_worker, spectral_operator, spectral_retention;
reset role;

-- +goose Down
set local lock_timeout = '5s';
drop schema core;
alter default privileges for role spectral_owner grant execute on functions to public;
