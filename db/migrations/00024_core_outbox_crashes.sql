-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
alter table core.outbox add column crashes integer not null default 0;
comment on column core.outbox.crashes is
  'workers that ended while they had the row in hand; from the first on it runs alone';
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from core.outbox where crashes > 0 and status = 'pending') then
    raise exception 'core.outbox has pending events that workers died of: going down would lose which';
  end if;
end
$$;
-- +goose StatementEnd
alter table core.outbox drop column crashes;
