-- core.payload_violations(p_payload, p_rules) returns the rules of a contract (core.event_types.payload_rules) that a
-- payload breaks, in their order: what each says, and what was received. Below a value of the wrong type nothing is
-- checked. It costs about 20 us per rule, so callers first test the payload with the contract's payload_fault.
create function core.payload_violations(p_payload jsonb, p_rules jsonb) returns table (says text, received text)
language sql stable as $$
  with broken as (
    select e.n, r.at, r.says, r.shows, r.kind, r.value, f.found
    from jsonb_array_elements(p_rules) with ordinality as e(rule, n),
      jsonb_to_record(e.rule) as r(at text, says text, shows text, kind text, value text, fault text, whole text),
      lateral (select coalesce(
        (select v from jsonb_path_query(p_payload, r.fault::jsonpath) as v limit 1),
        (select v from jsonb_path_query(p_payload, r.whole::jsonpath) as v
          where v::text like '%.%' limit 1)) as found) as f
    where f.found is not null
  )
  select b.at || ' ' || b.says, b.at || ' ' || case b.shows
    when 'type' then (select core.shown(v) from jsonb_path_query(p_payload, b.value::jsonpath) as v
                      where jsonb_typeof(v) <> b.kind limit 1)
    when 'fields' then (select '{' || left(coalesce(string_agg(k, ', ' order by k collate "C"), ''), 200) || '}'
                        from jsonb_object_keys(case b.shows when 'fields' then b.found else '{}' end) as k)
    when 'elements' then (b.found #>> '{}') || case b.found #>> '{}' when '1' then ' element' else ' elements' end
    when 'characters' then char_length(b.found #>> '{}') || ' characters'
    else core.shown(b.found) end
  from broken b
  where not exists (select from broken t where t.shows = 'type' and t.n < b.n and starts_with(b.at || '/', t.at || '/'))
  order by b.n
$$;
