-- +goose Up
set local lock_timeout = '5s';
create schema worlds authorization spectral_owner;
set local role spectral_owner;
comment on schema worlds is 'The worlds context.';
grant usage on schema worlds to spectral_worlds;
reset role;

-- +goose Down
set local lock_timeout = '5s';
drop schema worlds;
