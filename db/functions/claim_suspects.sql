-- core.claim_suspects(p_worker) lists the rows that workers had in hand whose session is gone, as
-- seen by a live worker: nobody claims them until it is known what to make of it, or for two
-- minutes after it was noticed: rows must not wait for a verdict that nobody gives. Null: nobody
-- is gone. Reads core.workers, core.claim_journal.
create function core.claim_suspects(p_worker uuid) returns uuid[]
language plpgsql volatile
as $$
declare
  v_gone constant uuid[] := core.workers_gone(p_worker);
begin
  if v_gone is null then
    return null;
  end if;
  return (select array_agg(i.id) from core.claim_journal j join core.workers w on w.worker_id = j.worker_id, unnest(j.ids) as i(id)
          where j.worker_id = any (v_gone) and coalesce(w.gone_at, clock_timestamp()) > clock_timestamp() - interval '2 minutes');
end
$$;
