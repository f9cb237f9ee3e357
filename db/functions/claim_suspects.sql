-- core.claim_suspects(p_worker) returns the rows in the journals of other workers whose sessions are gone. A claim
-- takes none of them before core.outbox_reap has decided which of them the crash counts for. Null: no such row. Reads
-- core.workers, core.claim_journal.
create function core.claim_suspects(p_worker uuid) returns uuid[] language plpgsql volatile as $$
begin
  return (
    with gone as materialized
      (select w.worker_id from core.workers w where w.worker_id is distinct from p_worker
        and core.worker_gone(w.session_id))
    select array_agg(i.id) from gone g join core.claim_journal j on j.worker_id = g.worker_id, unnest(j.ids) as i(id));
end
$$;
