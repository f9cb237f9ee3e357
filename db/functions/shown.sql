-- core.shown(p_value) returns how a refusal repeats a value that it received: an object or array by its kind, a string
-- in quotes, without control characters and cut after 60 characters. Go does the same (shown in internal/core/events).
create function core.shown(p_value jsonb) returns text language sql immutable as $$
  select case jsonb_typeof(p_value)
    when 'object' then 'an object'
    when 'array' then 'an array'
    when 'string' then '"' || regexp_replace(left(p_value #>> '{}', 60), E'[\u0001-\u001f\u007f]', ' ', 'g')
      || case when char_length(p_value #>> '{}') > 60 then '..." (' || octet_length(p_value #>> '{}') || ' bytes)'
        else '"' end
    when 'number' then left(p_value::text, 60)
      || case when char_length(p_value::text) > 60 then '... (' || char_length(p_value::text) || ' characters)'
        else '' end
    else coalesce(p_value::text, 'null') end
$$;
