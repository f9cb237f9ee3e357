-- core.outbox_locked_by(p_id, p_occurred_at) returns the process ids of the sessions that have locked a row of
-- core.outbox, without waiting for them; null: the row is free. The array is empty if the row is locked and the
-- sessions are not known: they are those of a savepoint that is over. It gives its own lock back at once. Locks
-- core.outbox; reads pg_locks.
create function core.outbox_locked_by(p_id uuid, p_occurred_at timestamptz) returns integer[]
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_free boolean := true;
  v_xmax xid;
  v_pids integer[];
begin
  begin
    perform from core.outbox o where o.id = p_id and o.occurred_at = p_occurred_at for update skip locked;
    v_free := found;
    raise exception using errcode = 'SPA00', message = 'gives the lock back';
  exception when sqlstate 'SPA00' then
    null;
  end;
  select o.xmax into v_xmax from core.outbox o where o.id = p_id and o.occurred_at = p_occurred_at;
  if v_free or not found then
    return null;
  end if;
  v_pids := array(select distinct l.pid from pg_locks l
    where l.locktype = 'transactionid' and l.granted and l.transactionid = v_xmax and l.pid is not null order by 1);
  if v_pids = '{}' then -- several sessions share the row
    v_pids := array(select distinct l.pid from pg_get_multixact_members(v_xmax) m
      join pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = m.xid
      where l.pid is not null order by 1);
  end if;
  return v_pids;
exception when invalid_parameter_value or internal_error then -- it was no number of such a group
  return '{}';
end
$$;
