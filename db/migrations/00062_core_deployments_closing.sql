-- What retiring a generation goes by: from closed_at on nothing can be published into it.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
alter table core.deployments
  add column if not exists closed_at timestamptz null,
  add column if not exists closed_xid xid8 null,
  add column if not exists closed_mark xid8 null;
comment on column core.deployments.closed_at is 'since when it takes no events: it is being retired';
comment on column core.deployments.closed_xid is 'the transaction that closed it';
comment on column core.deployments.closed_mark is 'a transaction id taken once that was visible: whoever published into it before has a lower one';
reset role;

-- +goose Down
-- the columns stay: core.outbox_insert, which stays as well, reads them
select 1;
