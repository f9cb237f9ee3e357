-- What an operator has discarded can be told from what retention has tombstoned.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
alter table core.outbox add column discarded_at timestamptz null;
comment on column core.outbox.discarded_at is 'when an operator discarded the event (core.outbox_discard); null for a tombstone of retention';
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from core.outbox where discarded_at is not null) then
    raise exception 'core.outbox has discarded events: going down would lose which can be undiscarded';
  end if;
end
$$;
-- +goose StatementEnd
alter table core.outbox drop column discarded_at;
