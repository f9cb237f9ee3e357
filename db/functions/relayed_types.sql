-- core.relayed_types() returns the generations and types that have relayed events. It reads one entry of the index
-- outbox_relayed for each. Reads core.outbox.
create function core.relayed_types() returns table (generation bigint, event_type text) language sql stable as $$
  with recursive relayed(generation, event_type) as (
    (select o.generation, o.event_type from core.outbox o where o.status = 'relayed' and o.deleted_at is null
     order by o.generation, o.event_type limit 1)
    union all
    select n.* from relayed r cross join lateral
      (select o.generation, o.event_type from core.outbox o where o.status = 'relayed' and o.deleted_at is null
         and (o.generation, o.event_type) > (r.generation, r.event_type)
       order by o.generation, o.event_type limit 1) n)
  select r.generation, r.event_type from relayed r
$$;
