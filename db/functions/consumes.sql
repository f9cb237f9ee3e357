-- core.consumes(p_generation, p_consumed_in, p_consumed) says whether a generation consumes an event type, from its row
-- of core.event_types: as the generation's build registered it, or else as the latest build did.
create function core.consumes(p_generation bigint, p_consumed_in jsonb, p_consumed boolean) returns boolean
language sql immutable as $$
  select coalesce((p_consumed_in ->> p_generation::text)::boolean, p_consumed)
$$;
