-- core.claim_suspects(p_worker, p_generation, p_event_type) returns the rows that a claim passes over: those in the
-- journals of other workers whose sessions are gone, before core.outbox_reap has decided which of them the crash counts
-- for; and the quarantined ones of the generation and type, null for all types. Null: no such row. Reads core.workers,
-- core.claim_journal, core.quarantined_events.
create function core.claim_suspects(p_worker uuid, p_generation bigint, p_event_type text) returns uuid[]
language plpgsql volatile as $$
begin
  return (
    with gone as materialized
      (select w.worker_id from core.workers w where w.worker_id is distinct from p_worker
        and core.worker_gone(w.session_id))
    select array_agg(s.id) from
      (select i.id from gone g join core.claim_journal j on j.worker_id = g.worker_id, unnest(j.ids) as i(id)
       union all
       select q.id from core.quarantined_events q
       where q.generation = p_generation and (p_event_type is null or q.event_type = p_event_type)) s);
end
$$;
