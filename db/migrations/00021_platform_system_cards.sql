-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;
create table platform.system_cards (
  workspace_id uuid null,
  card_id text not null,
  version bigint not null,
  title text not null,
  snapshot jsonb not null,
  projected_at timestamptz not null default clock_timestamp(),
  constraint system_cards_key unique nulls not distinct (workspace_id, card_id),
  constraint system_cards_version_positive check (version >= 1),
  constraint system_cards_snapshot_object check (jsonb_typeof(snapshot) = 'object')
);
comment on table platform.system_cards is 'Projection of worlds'' world model cards: the latest version seen of each.';
comment on column platform.system_cards.snapshot is 'the event''s payload, unchanged';
alter table platform.system_cards enable row level security;
create policy system_cards_workspace on platform.system_cards to spectral_platform
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on platform.system_cards to spectral_platform;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  if exists (select from platform.system_cards) then
    raise exception 'platform.system_cards is not empty: going down would lose projected cards';
  end if;
end
$$;
-- +goose StatementEnd
drop table platform.system_cards;
