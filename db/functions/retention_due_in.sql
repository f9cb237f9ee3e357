-- core.retention_due_in(p_interval) returns in how many seconds the next run of a worker is due, of those that begin an interval of seconds
-- apart: 0 now. One that was cut short is taken up after a minute. Refuses an interval that is not above 0 and at most a day (SP051). Reads
-- core.retention_runs.
create function core.retention_due_in(p_interval double precision) returns double precision
language plpgsql stable security definer
set search_path = pg_catalog, core, pg_temp
as $$
begin
  if p_interval is null or not (p_interval > 0 and p_interval <= 86400) then
    raise exception 'interval: % must be above 0 and at most 86400 seconds', coalesce(p_interval::text, 'null') using errcode = 'SP051', column = 'interval';
  end if;
  return coalesce(
    (select greatest(0, least(p_interval, extract(epoch from
       case when r.ended_at is null then r.updated_at + interval '1 minute' else r.started_at + make_interval(secs => p_interval) end
       - clock_timestamp())))
     from core.retention_runs r where not r.by_hand order by r.started_at desc limit 1), 0)::double precision;
end
$$;
grant execute on function core.retention_due_in(double precision)
  to spectral_operator, spectral_retention, spectral_worker;
