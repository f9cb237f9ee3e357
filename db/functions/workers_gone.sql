-- core.workers_gone(p_except) lists the workers, but for one, whose session lock is free. The
-- locks that it tries are given back at once: they are taken in a block that an error ends. Reads
-- core.workers.
create function core.workers_gone(p_except uuid) returns uuid[]
language plpgsql volatile
as $$
declare
  v_gone uuid[];
begin
  if not exists (select from core.workers w where w.worker_id is distinct from p_except) then
    return null;
  end if;
  begin
    select array_agg(w.worker_id) into v_gone from core.workers w
    where w.worker_id is distinct from p_except and pg_try_advisory_xact_lock_shared(core.worker_lock(w.session_id));
    raise exception using errcode = 'SPW00', message = 'gives the locks back';
  exception when sqlstate 'SPW00' then
    null;
  end;
  return v_gone;
end
$$;
