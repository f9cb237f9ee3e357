-- core.refuse(p_code, p_field, p_reason, p_received, p_hint, p_position) raises the refusal of an event: SQLSTATE
-- p_code, the field in the COLUMN and at the start of the MESSAGE, what was received in the DETAIL, what to do in the
-- HINT. p_position is the place of the event in a bulk call, null for a single event.
create function core.refuse(p_code text, p_field text, p_reason text, p_received text, p_hint text, p_position integer)
returns void language plpgsql volatile as $$
begin
  raise exception '%: %', p_field, p_reason using errcode = p_code, column = p_field, hint = p_hint,
    detail = coalesce('event ' || p_position || ' of the call: ', '') || 'received ' || p_received;
end
$$;
