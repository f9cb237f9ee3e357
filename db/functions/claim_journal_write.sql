-- core.claim_journal_write(...) notes a claim before its handlers run, in place of the runner's
-- earlier one; no ids: it has nothing in hand. The commit does not wait for the disk: the note is
-- about the death of a worker, not of the server. Writes core.claim_journal.
create function core.claim_journal_write(
  p_worker uuid, p_event_type text, p_runner integer, p_generation bigint, p_ids uuid[], p_alone boolean, p_handler text
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_unused text;
begin
  v_unused := set_config('synchronous_commit', 'off', true);
  insert into core.claim_journal as j (worker_id, event_type, runner, generation, ids, alone, handler)
  values (p_worker, p_event_type, p_runner, p_generation, p_ids, p_alone, p_handler)
  on conflict (worker_id, event_type, runner) do update
  set ids = p_ids, alone = p_alone, handler = p_handler, claimed_at = clock_timestamp(),
      server_started_at = pg_postmaster_start_time();
end
$$;
grant execute on function core.claim_journal_write(uuid, text, integer, bigint, uuid[], boolean, text)
  to spectral_worker;
