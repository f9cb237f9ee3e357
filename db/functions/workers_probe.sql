-- core.workers_probe(p_worker, p_grace) notes which workers, other than the calling one, have lost their session.
-- Returns in how many seconds the first of them will have been gone for p_grace seconds, null when none is gone. Writes
-- core.workers.
create function core.workers_probe(p_worker uuid, p_grace double precision) returns double precision
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  update core.workers w set gone_at = clock_timestamp() where w.worker_id in
    (select g.worker_id from core.workers g
     where g.worker_id <> p_worker and g.gone_at is null and core.worker_gone(g.session_id)
     order by g.worker_id for update skip locked);
  return (select greatest(extract(epoch from min(w.gone_at) - clock_timestamp()) + p_grace, 0)
          from core.workers w where w.worker_id <> p_worker and w.gone_at is not null
          having count(*) > 0); -- no row, so null: greatest ignores nulls and would say 0
end
$$;
