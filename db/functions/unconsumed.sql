-- core.unconsumed(p_event_type, p_event_version, p_generation) says whether a generation is known to have no consumer
-- of a type, so that its events are of no use there (core.consumes). It returns false for a type that is not
-- registered. Reads core.event_types.
create function core.unconsumed(p_event_type text, p_event_version integer, p_generation bigint) returns boolean
language sql stable as $$
  select exists (select from core.event_types t
    where t.event_type = p_event_type and t.event_version = p_event_version
      and not core.consumes(p_generation, t.consumed_in, t.consumed))
$$;
