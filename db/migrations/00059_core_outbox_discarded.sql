-- What an operator has discarded can be told from what retention has tombstoned, and what was undiscarded is kept for a while by it.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
alter table core.outbox
  add column discarded_at timestamptz null,
  add column undiscarded_at timestamptz null;
comment on column core.outbox.discarded_at is 'when an operator discarded the event (core.outbox_discard); null for a tombstone of retention';
comment on column core.outbox.undiscarded_at is 'when an operator took a discard back (core.outbox_undiscard), until the next; retention keeps the event for its grace from then';
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from core.outbox where discarded_at is not null or undiscarded_at is not null) then
    raise exception 'core.outbox has events that were discarded or undiscarded: going down would lose which';
  end if;
end
$$;
-- +goose StatementEnd
alter table core.outbox drop column discarded_at, drop column undiscarded_at;
