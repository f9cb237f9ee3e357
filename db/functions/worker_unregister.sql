-- core.worker_unregister(p_worker, p_channels) removes a worker that has ended, and notifies the others of what it
-- released last. If it could not release every lease, core.outbox_reap removes it when they have run out: until then it
-- is known that it stopped. Writes core.workers, core.claim_journal.
create function core.worker_unregister(p_worker uuid, p_channels text[]) returns void
language sql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
  delete from core.claim_journal j where j.worker_id = p_worker;
  delete from core.workers w where w.worker_id = p_worker and not exists (select from core.outbox o
    where o.status = 'in_flight' and o.deleted_at is null and starts_with(o.claimed_by, p_worker::text));
  select pg_notify(c, '') from unnest(p_channels) as c;
$$;
