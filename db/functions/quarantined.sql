-- core.quarantined(p_generation, p_event_type) returns the ids of the quarantined events of a generation and type, null
-- for all types: an empty array, nearly always. Another event with such an id is passed over too. Reads
-- core.quarantined_events.
create function core.quarantined(p_generation bigint, p_event_type text default null) returns uuid[]
language plpgsql stable as $$
begin
  return array(select q.id from core.quarantined_events q
    where q.generation = p_generation and (p_event_type is null or q.event_type = p_event_type));
end
$$;
