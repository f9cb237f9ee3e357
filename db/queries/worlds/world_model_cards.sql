-- name: ReserveVersion :one
-- Takes the card's row lock and its next version; the card itself follows in PutCard.
insert into worlds.world_model_cards (workspace_id, card_id, version, card, published_at)
values (@workspace_id, @card_id, 1, '{}', @published_at)
on conflict (workspace_id, card_id) do update set version = world_model_cards.version + 1
returning version;

-- name: PutCard :exec
update worlds.world_model_cards
set card = @card, published_at = @published_at
where workspace_id is not distinct from @workspace_id and card_id = @card_id and version = @version;

-- name: FindCard :one
select version, card from worlds.world_model_cards
where workspace_id is not distinct from @workspace_id and card_id = @card_id;
