-- +goose Up
set local lock_timeout = '5s';
create schema platform authorization spectral_owner;
set local role spectral_owner;
comment on schema platform is 'The platform context.';
grant usage on schema platform to spectral_platform;
reset role;

-- +goose Down
set local lock_timeout = '5s';
drop schema platform;
