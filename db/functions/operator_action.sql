-- core.operator_action(p_action, p_acted_by, p_event_ids, p_generation, p_details) notes what an operator does, in the
-- transaction that does it; the functions that act are its only callers. p_acted_by may be null: then it is the login.
-- Refuses a name that is blank or longer than 256 bytes (SP030). Writes core.operator_actions.
create function core.operator_action(p_action text, p_acted_by text, p_event_ids uuid[] default '{}',
  p_generation bigint default null, p_details jsonb default '{}') returns void
language plpgsql volatile as $$
begin
  if p_acted_by is not null and (btrim(p_acted_by) = '' or octet_length(p_acted_by) > 256) then
    raise exception 'acted_by: must be 1 to 256 bytes, not blank; it has % bytes', octet_length(p_acted_by)
      using errcode = 'SP030', column = 'acted_by', hint = 'name yourself, or pass null to be noted as your login';
  end if;
  insert into core.operator_actions (action, acted_by, event_ids, generation, details)
  values (p_action, coalesce(btrim(p_acted_by), session_user), coalesce(p_event_ids, '{}'), p_generation,
    coalesce(jsonb_strip_nulls(p_details), '{}'));
end
$$;
