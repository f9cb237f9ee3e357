-- core.pending_types() returns the generations and types that have pending events. It reads one entry of the index
-- outbox_due for each. Reads core.outbox.
create function core.pending_types() returns table (generation bigint, event_type text) language sql stable as $$
  with recursive pending(generation, event_type) as (
    (select o.generation, o.event_type from core.outbox o where o.status = 'pending' and o.deleted_at is null
     order by o.generation, o.event_type limit 1)
    union all
    select n.* from pending p cross join lateral
      (select o.generation, o.event_type from core.outbox o where o.status = 'pending' and o.deleted_at is null
         and (o.generation, o.event_type) > (p.generation, p.event_type)
       order by o.generation, o.event_type limit 1) n)
  select p.generation, p.event_type from pending p
$$;
