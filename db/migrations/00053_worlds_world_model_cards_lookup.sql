-- The key begins with the workspace, and "is not distinct from", by which a row is found, serves no index: a card is found by
-- its id.

-- +goose NO TRANSACTION
-- +goose Up
set lock_timeout = '500ms';
set role spectral_owner;
-- what a build that was cut short has left is of no use
drop index if exists worlds.world_model_cards_lookup;
create index concurrently world_model_cards_lookup on worlds.world_model_cards (card_id, workspace_id);
reset role;
reset lock_timeout;

-- +goose Down
set lock_timeout = '500ms';
drop index if exists worlds.world_model_cards_lookup;
reset lock_timeout;
