-- core.handles(p_handler, p_target) says whether a handler of an event's type is one of those that the event is for: of
-- every context, or of its target's. A handler's name begins with its context.
create function core.handles(p_handler text, p_target text) returns boolean language sql immutable as $$
  select p_target is null or split_part(p_handler, '.', 1) = p_target
$$;
