-- core.workers_probe(p_worker, p_grace) notes which workers, other than the calling one, have lost
-- their session, and which have it back. Returns in how many seconds the next one will have been
-- gone for p_grace seconds, null when none is gone. Writes core.workers.
create function core.workers_probe(p_worker uuid, p_grace double precision) returns double precision
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_gone constant uuid[] := coalesce(core.workers_gone(p_worker), '{}');
begin
  -- whoever else does the same does it in the same order, or does it for us
  with changed as materialized
    (select w.worker_id from core.workers w
     where w.worker_id <> p_worker and (w.gone_at is null) = (w.worker_id = any (v_gone))
     order by w.worker_id for update skip locked)
  update core.workers w
  set gone_at = case when w.worker_id = any (v_gone) then clock_timestamp() end
  from changed c where w.worker_id = c.worker_id;
  return (select greatest(extract(epoch from w.gone_at - clock_timestamp()) + p_grace, 0)
          from core.workers w where w.worker_id = any (v_gone) order by w.gone_at limit 1);
end
$$;
grant execute on function core.workers_probe(uuid, double precision) to spectral_worker;
