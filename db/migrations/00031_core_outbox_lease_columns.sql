-- What a lease is: a claim that outlives its transaction (leased mode, docs/decisions/0011).

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
alter table core.outbox
  add column lease_seconds double precision not null default 300,
  add column claimed_by text null,
  add column lease_handler text null,
  -- for rows written from now on: nothing else has set it
  add constraint outbox_lease_seconds_range check (lease_seconds > 0 and lease_seconds <= 86400) not valid;
comment on column core.outbox.lease_seconds is 'how long the lease of an in_flight row lasts from claimed_at on';
comment on column core.outbox.claimed_by is 'worker that has the row in flight: its worker_id and, for people, its name';
comment on column core.outbox.lease_handler is 'which handler of an in_flight row is at work, where that is known';
comment on column core.outbox.crashes is
  'workers that ended while they had the row in hand, and leases of it that ran out; from the first on it runs apart';
reset role;

-- +goose Down
set local lock_timeout = '500ms';
alter table core.outbox drop column lease_handler, drop column claimed_by, drop column lease_seconds;
comment on column core.outbox.crashes is 'workers that ended while they had the row in hand; from the first on it runs alone';
