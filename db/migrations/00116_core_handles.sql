-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- core.handles(p_handler, p_target) says whether a handler of an event's type is one of those that the event is for: of every context,
-- or of its target's. A handler's name begins with its context.
create function core.handles(p_handler text, p_target text) returns boolean
language sql immutable
return p_target is null or split_part(p_handler, '.', 1) = p_target;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.handles(text, text);
