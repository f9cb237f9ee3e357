-- core.outbox_look(p_generation, p_event_types) is the one cheap look after a wake-up, and the
-- poll: for each type with pending rows, whether one is due now and in how many seconds the next
-- one that is not yet due will be (null: none). Seconds, not times, so that a worker's own clock
-- never matters. None for a type that is paused. Takes no lock: a row that another worker holds counts as due. Reads core.outbox,
-- core.paused_types. Only builds of long ago call it.
create function core.outbox_look(p_generation bigint, p_event_types text[])
returns table (event_type text, due boolean, next_in double precision)
language sql stable security definer
set search_path = pg_catalog, core, pg_temp
as $$
  select t.event_type,
         exists (select from core.outbox o
                 where o.generation = p_generation and o.event_type = t.event_type
                   and o.status = 'pending' and o.deleted_at is null
                   and o.available_at <= statement_timestamp()),
         extract(epoch from
           (select min(o.available_at) from core.outbox o
            where o.generation = p_generation and o.event_type = t.event_type
              and o.status = 'pending' and o.deleted_at is null
              and o.available_at > statement_timestamp()) - statement_timestamp())::double precision
  from unnest(p_event_types) as t(event_type)
  where not exists (select from core.paused_types p where p.generation = p_generation and p.event_type = t.event_type)
$$;
grant execute on function core.outbox_look(bigint, text[]) to spectral_worker;
