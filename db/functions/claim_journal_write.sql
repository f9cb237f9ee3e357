-- core.claim_journal_write(...) notes which rows a runner holds before their handlers run, in place of its earlier entry; no
-- ids: it holds none. The commit does not wait for the disk: the entry is about the death of a worker, not of the server.
-- Writes core.claim_journal.
create function core.claim_journal_write(p_worker uuid, p_event_type text, p_runner integer, p_ids uuid[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_unused text;
begin
  v_unused := set_config('synchronous_commit', 'off', true);
  insert into core.claim_journal as j (worker_id, event_type, runner, ids)
  values (p_worker, p_event_type, p_runner, p_ids) on conflict (worker_id, event_type, runner) do update
  set ids = p_ids, claimed_at = clock_timestamp();
end
$$;
