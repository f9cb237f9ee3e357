-- core.claim_journal_write(...) records which rows a runner holds before their handlers run, and replaces its earlier
-- entry. No ids: it holds no rows. p_handlers are those of its row that act outside their transaction and begin now, or
-- have begun. The commit does not wait for the disk, because the entry matters after a crash of the worker and not of
-- the server. Reads core.workers, writes core.claim_journal.
create function core.claim_journal_write(p_worker uuid, p_event_type text, p_runner integer, p_ids uuid[],
  p_handlers text[] default '{}') returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_unused text;
begin
  v_unused := set_config('synchronous_commit', 'off', true);
  insert into core.claim_journal as j (worker_id, event_type, runner, ids, handlers)
  select p_worker, p_event_type, p_runner, p_ids, p_handlers
  -- a statement that its sender has given up may arrive after the worker has ended
  where exists (select from core.workers w where w.worker_id = p_worker)
  on conflict (worker_id, event_type, runner) do update
  set ids = p_ids, handlers = p_handlers, claimed_at = clock_timestamp();
end
$$;
