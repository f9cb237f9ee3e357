-- core.event_types_register(p_generation, p_types) upserts the contracts of one build. p_types is
-- an array of {event_type, event_version, source, class, content_class, consumed, payload_schema, payload_rules,
-- payload_fault, deadline, successor, sensitive}, of which older builds leave out the last six. A row written
-- by a higher generation stays. Types are never removed: an older build may still publish them.
-- Returns how many rows changed. Writes core.event_types.
create function core.event_types_register(p_generation bigint, p_types jsonb) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_changed integer;
begin
  if p_generation is null or p_generation not between 0 and 999999999999 then
    perform core.refuse('SP019', 'generation', 'must be from 0 to 999999999999', coalesce(p_generation::text, 'null'),
      'pass the generation of the build, 0 for none', null);
  end if;
  -- one order for all, also for core.generation_retire, so that none of them deadlock
  perform from core.event_types t where t.event_type in (select e ->> 'event_type' from jsonb_array_elements(p_types) e)
    order by t.event_type, t.event_version for update;
  insert into core.event_types as t
    (event_type, event_version, source, class, content_class, consumed, registered_by,
     payload_schema, payload_rules, payload_fault, deadline, successor, sensitive)
  select r.event_type, r.event_version, r.source, r.class, r.content_class, r.consumed, p_generation,
         r.payload_schema, r.payload_rules, r.payload_fault::jsonpath, r.deadline, r.successor,
         coalesce(r.sensitive, '{}')
  from jsonb_to_recordset(p_types) as r
    (event_type text, event_version integer, source text, class text, content_class text, consumed boolean,
     payload_schema jsonb, payload_rules jsonb, payload_fault text, deadline timestamptz, successor text,
     sensitive text[])
  order by r.event_type, r.event_version
  on conflict (event_type, event_version) do update
    set source = excluded.source, class = excluded.class, content_class = excluded.content_class,
        consumed = excluded.consumed, registered_by = excluded.registered_by,
        payload_schema = excluded.payload_schema, payload_rules = excluded.payload_rules,
        payload_fault = excluded.payload_fault, deadline = excluded.deadline, successor = excluded.successor,
        sensitive = excluded.sensitive, registered_at = clock_timestamp()
    where t.registered_by <= excluded.registered_by and (t.source, t.class, t.content_class, t.consumed,
        t.registered_by, t.payload_schema, t.payload_rules, t.payload_fault::text, t.deadline, t.successor, t.sensitive)
      is distinct from (excluded.source, excluded.class, excluded.content_class, excluded.consumed,
        excluded.registered_by, excluded.payload_schema, excluded.payload_rules, excluded.payload_fault::text,
        excluded.deadline, excluded.successor, excluded.sensitive);
  get diagnostics v_changed = row_count;
  -- a deprecation belongs to the type, so it also holds for versions that this build no longer declares
  update core.event_types t set deadline = r.deadline, successor = r.successor
    from (select e ->> 'event_type' as event_type, max(e ->> 'deadline')::timestamptz as deadline,
      max(e ->> 'successor') as successor from jsonb_array_elements(p_types) as e group by 1) r
    where t.event_type = r.event_type and t.registered_by <= p_generation
      and (t.deadline, t.successor) is distinct from (r.deadline, r.successor);
  -- for each generation separately, because the handlers of their builds differ
  update core.event_types t set consumed_in = r.consumed_in from (select n.event_type,
            coalesce((select jsonb_object_agg(g.key, g.value) from core.event_types o, jsonb_each(o.consumed_in) as g
                      where o.event_type = n.event_type), '{}')
            || jsonb_build_object(p_generation::text, n.consumed) as consumed_in
          from (select e ->> 'event_type' as event_type, bool_or((e ->> 'consumed')::boolean) as consumed
                from jsonb_array_elements(p_types) as e group by 1) n) r
    where p_generation > 0 and t.event_type = r.event_type and t.consumed_in <> r.consumed_in;
  return v_changed;
end
$$;
