-- core.lease_expires_in() returns in how many seconds the first lease of all generations runs out, 0 if one
-- has; null: nothing is in flight. It passes over quarantined rows. Reads core.outbox, core.quarantined_events.
create function core.lease_expires_in() returns double precision
language sql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off set jit = off
as $$
  -- null only without rows: greatest passes over a time that is missing
  select min(greatest(extract(epoch from
           -- of times that can be subtracted, whatever a hand may have written
           least(greatest(o.claimed_at, timestamptz '2000-01-01 00:00:00+00'), clock_timestamp() + interval '1 day')
           - clock_timestamp()) + o.lease_seconds, 0))::double precision
  from core.outbox o where o.status = 'in_flight' and o.deleted_at is null
    and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
$$;
