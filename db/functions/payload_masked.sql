-- core.payload_masked(p_payload, p_sensitive) returns a payload with the fields that a contract marks as sensitive
-- replaced by "***"; a path like customer.name is of a field within objects. Null for p_sensitive: the contract is not
-- known, and nothing is shown.
create function core.payload_masked(p_payload jsonb, p_sensitive text[]) returns jsonb language plpgsql immutable as $$
declare
  v_path text;
begin
  if p_sensitive is null then return '"masked: its contract is not registered"'; end if;
  foreach v_path in array p_sensitive loop
    p_payload := jsonb_set(p_payload, string_to_array(v_path, '.'), '"***"', false);
  end loop;
  return p_payload;
end
$$;
