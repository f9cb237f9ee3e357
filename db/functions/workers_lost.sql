-- core.workers_lost(p_grace) lists, for the log, the workers that have been without a session for
-- p_grace seconds, and the rows that each had in hand: those of its claims that are as they were
-- claimed, and those that are in flight in its name until their leases run out. At most 100 of each. Reads
-- core.workers, core.claim_journal, core.outbox.
create function core.workers_lost(p_grace double precision)
returns table (worker_id uuid, name text, gone_at timestamptz, in_hand uuid[])
language sql stable security definer
set search_path = pg_catalog, core, pg_temp
as $$
  select w.worker_id, w.name, w.gone_at,
         array(select o.id from core.claim_journal j join core.outbox o on o.id = any (j.ids)
               where j.worker_id = w.worker_id and o.status = 'pending' and o.deleted_at is null and o.available_at <= j.claimed_at
               limit 100)
         || array(select o.id from core.outbox o
                  where o.status = 'in_flight' and o.deleted_at is null and starts_with(o.claimed_by, w.worker_id::text)
                  limit 100)
  from core.workers w
  where w.gone_at <= clock_timestamp() - make_interval(secs => p_grace)
$$;
grant execute on function core.workers_lost(double precision) to spectral_worker;
