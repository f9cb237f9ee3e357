-- core.adoption_check(p_from, p_to, p_keep) refuses to adopt between equal generations (SP042), into one that takes no
-- events, and from one that is neither registered nor named by pending events (SP019). Returns the status of p_from,
-- 'unknown' if it is not registered. With p_keep p_to stays open until the caller's transaction ends. Locks a row of
-- core.deployments; reads core.outbox.
create function core.adoption_check(p_from bigint, p_to bigint, p_keep boolean) returns text
language plpgsql volatile as $$
declare
  v_status text;
begin
  if p_from = p_to then
    raise exception 'to: must be another generation than %', p_to using errcode = 'SP042', column = 'to',
      hint = '`workers generation status` lists them';
  end if;
  perform core.generation_open(p_to, p_keep);
  select d.status into v_status from core.deployments d where d.generation = p_from;
  if v_status is null and not exists
      (select from core.outbox o where o.generation = p_from and o.status = 'pending' and o.deleted_at is null) then
    raise exception 'from: generation % is not registered, and has no pending events', coalesce(p_from::text, 'null')
      using errcode = 'SP019', column = 'from', hint = '`workers generation status` lists them';
  end if;
  return coalesce(v_status, 'unknown');
end
$$;
