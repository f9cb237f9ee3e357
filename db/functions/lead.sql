-- core.lead(p_duty) says whether the calling transaction leads in a duty, until it ends; nobody waits. By the lock of a row that only
-- the owner's functions can lock: an advisory lock anybody who can connect can hold, for ever, and nobody would notice that
-- nothing is reaped any more. A row lock takes a transaction id: ask when there is something to do. Locks a row of core.leads, and
-- inserts it if somebody has deleted it: who would have to wait for another that is inserting does not lead.
create function core.lead(p_duty text) returns boolean
language plpgsql volatile
as $$
begin
  perform from core.leads l where l.duty = p_duty for update skip locked;
  if found then
    return true;
  end if;
  if exists (select from core.leads l where l.duty = p_duty) then
    return false;
  end if;
  begin
    lock table core.leads in share row exclusive mode nowait; -- which does not go together with inserting
  exception when lock_not_available then
    return false;
  end;
  insert into core.leads (duty) values (p_duty) on conflict (duty) do nothing;
  perform from core.leads l where l.duty = p_duty for update skip locked;
  return found;
end
$$;
