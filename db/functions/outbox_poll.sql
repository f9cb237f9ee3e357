-- core.outbox_poll(p_generation, p_event_types, p_watermarks, ...) finds out which event types have due events, in
-- one cheap query. For each type with pending rows available from its watermark on it returns the time of the oldest
-- due row (null: none), the seconds until the next row that is not due yet (null: none), and whether a due row has
-- crashes. They are seconds, not times, so that the worker's own clock does not matter. It returns nothing for a paused
-- type and passes over quarantined rows. Due rows with an id of p_held and an occurred_at of p_held_at, which the
-- caller is handling, it passes over too. It takes no lock: a row that another worker holds counts as due. Reads
-- core.outbox, core.paused_types, core.quarantined_events.
create function core.outbox_poll(p_generation bigint, p_event_types text[],
  p_watermarks timestamptz[], p_held uuid[] default '{}', p_held_at timestamptz[] default '{}')
returns table (event_type text, oldest_due timestamptz, next_in double precision, crashed boolean)
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  -- not statement_timestamp(), which is from before the barrier: what is published during that would not be due yet
  v_now constant timestamptz := clock_timestamp();
begin
  return query
    select t.event_type,
           (select o.available_at from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
              and o.status = 'pending' and o.deleted_at is null
              and o.available_at >= t.watermark and o.available_at <= v_now
              and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
              and (o.id <> all (p_held) or o.occurred_at <> all (p_held_at))
            order by o.available_at limit 1),
           extract(epoch from
             (select o.available_at from core.outbox o
              where o.generation = p_generation and o.event_type = t.event_type
                and o.status = 'pending' and o.deleted_at is null and o.available_at > v_now
                and not exists
                  (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
              order by o.available_at limit 1) - v_now)::double precision,
           -- in order, like the others: planned on an empty table EXISTS would read all of some other index
           coalesce((select true from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
                     and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
                     and o.available_at <= v_now
                     and not exists
                       (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
                     and (o.id <> all (p_held) or o.occurred_at <> all (p_held_at))
                     order by o.available_at limit 1), false)
    from unnest(p_event_types, p_watermarks) as t(event_type, watermark)
    where not exists
      (select from core.paused_types p where p.generation = p_generation and p.event_type = t.event_type);
end
$$;
