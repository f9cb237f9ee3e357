-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;
create table worlds.world_model_cards (
  workspace_id uuid null,
  card_id text not null,
  version bigint not null,
  card jsonb not null,
  published_at timestamptz not null,
  constraint world_model_cards_key unique nulls not distinct (workspace_id, card_id),
  constraint world_model_cards_card_id_size check (octet_length(card_id) between 1 and 200),
  constraint world_model_cards_version_positive check (version >= 1),
  constraint world_model_cards_card_object check (jsonb_typeof(card) = 'object')
);
comment on table worlds.world_model_cards is 'The current version of each world model card, as published.';
alter table worlds.world_model_cards enable row level security;
create policy world_model_cards_workspace on worlds.world_model_cards to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on worlds.world_model_cards to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  if exists (select from worlds.world_model_cards) then
    raise exception 'worlds.world_model_cards is not empty: going down would lose cards';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.world_model_cards;
