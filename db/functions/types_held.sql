-- core.types_held(p_worker) returns the event types of which other workers hold rows that they run, as their journals
-- say. Reads core.claim_journal.
create function core.types_held(p_worker uuid) returns text[]
language sql stable security definer set search_path = pg_catalog, core, pg_temp as $$
  select coalesce(array_agg(distinct j.event_type), '{}') from core.claim_journal j
  where j.worker_id <> p_worker and cardinality(j.ids) > 0
$$;
