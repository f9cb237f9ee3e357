-- core.turn(p_duty) lets one transaction at a time go on, until it ends; the others wait. By the locks that core.lead takes, which nobody but the owner's functions
-- can: an advisory lock anybody could hold, and no worker would start any more. Locks a row of core.leads, and inserts it if somebody has
-- deleted it.
create function core.turn(p_duty text) returns void
language plpgsql volatile
as $$
begin
  loop
    perform from core.leads l where l.duty = p_duty for update;
    exit when found;
    insert into core.leads (duty) values (p_duty) on conflict (duty) do nothing;
  end loop;
end
$$;
