-- core.outbox_relayed_since(p_generation, p_event_types) returns, of these types that have relayed rows, when the first
-- of them was sent, and the time now. Reads core.outbox.
create function core.outbox_relayed_since(p_generation bigint, p_event_types text[]) returns table (event_type text,
  first_at timestamptz, now timestamptz)
language sql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select t.event_type, f.relayed_at, clock_timestamp()
  from unnest(p_event_types) as t(event_type) cross join lateral
    (select o.relayed_at from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
       and o.status = 'relayed' and o.deleted_at is null order by o.relayed_at limit 1) f
$$;
