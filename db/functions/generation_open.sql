-- core.generation_open(p_generation, p_keep) refuses a generation that takes no events: none given, unknown, being
-- retired or retired (SP019). A draining one takes them. It stays open until the caller's transaction ends: for
-- functions that move events into it, not for publishing, whose producers would all lock one row. Without p_keep it is
-- only looked at: for dry runs, which must not write, and hold nothing up. Locks a row of core.deployments.
create function core.generation_open(p_generation bigint, p_keep boolean default true) returns void
language plpgsql volatile as $$
declare
  v_status text;
begin
  if p_keep then perform from core.deployments d where d.generation = p_generation for share; end if;
  select case when d.status <> 'retired' and d.closed_at is not null then 'being retired' else d.status end
    into v_status from core.deployments d where d.generation = p_generation;
  if v_status is null or v_status in ('retired', 'being retired') then
    raise exception 'generation: % is %', coalesce(p_generation::text, 'null'),
        case when p_generation is null then 'none' else coalesce(v_status, 'not registered') end
      using errcode = 'SP019', column = 'generation',
            hint = coalesce('the highest live one is ' || (select max(d.generation) from core.deployments d
              where d.status = 'live'), 'none is live: ' || core.generation_hint());
  end if;
end
$$;
