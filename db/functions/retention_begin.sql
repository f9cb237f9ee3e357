-- core.retention_begin(p_interval) returns in how many seconds the next sweep of a worker is due, of those that begin
-- p_interval seconds apart. 0: it is due, and the caller has it; for the others the next one is then an interval away.
-- Refuses an interval that is not above 0 and at most a day (SP051). Writes core.retention_policies.
create function core.retention_begin(p_interval double precision) returns double precision
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  if p_interval is null or not (p_interval > 0 and p_interval <= 86400) then
    raise exception 'interval: % must be above 0 and at most 86400 seconds', coalesce(p_interval::text, 'null')
      using errcode = 'SP051', column = 'interval';
  end if;
  -- a time ahead means that the clock was set back
  update core.retention_policies p set swept_at = clock_timestamp() where p.subject = 'outbox_row'
    and coalesce(p.swept_at not between clock_timestamp() - make_interval(secs => p_interval) and clock_timestamp(),
      true);
  if found then return 0; end if;
  return (select extract(epoch from p.swept_at - clock_timestamp()) + p_interval from core.retention_policies p
    where p.subject = 'outbox_row');
end
$$;
