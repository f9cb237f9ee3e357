-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.retention_status(p_warn_days) is one row about retention: what is wrong with the policies (null: nothing); the failed, not discarded
-- events that will be tombstoned within so many days unless they are replayed before, how many and when the first of them is (null: none);
-- and the latest run. A run without an end was cut short, or is under way. Fast whatever core.outbox holds. Refuses days that are not from 0
-- to 36500 (SP051). Reads core.outbox, core.retention_policies, core.retention_runs.
create function core.retention_status(p_warn_days integer default 7)
returns table (
  policy_fault text, failed_expiring bigint, failed_expire_first_at timestamptz,
  run_id uuid, run_by text, run_by_hand boolean, run_started_at timestamptz, run_updated_at timestamptz, run_ended_at timestamptz, run_steps jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
  if p_warn_days is null or p_warn_days not between 0 and 36500 then
    raise exception 'warn_days: % must be from 0 to 36500', coalesce(p_warn_days::text, 'null') using errcode = 'SP051', column = 'warn_days';
  end if;
  return query
  select core.retention_policies_check(), f.events, f.first_at,
         r.run_id, r.swept_by, r.by_hand, r.started_at, r.updated_at, r.ended_at, r.steps
  from
    (select count(*) as events,
            min(core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at) + t.ttl) as first_at
     from (select make_interval(hours => p.active_ttl_days * 24) as ttl from core.retention_policies p
           where p.subject = 'outbox_row' and p.content_class = '*') t,
          core.outbox o
     where o.status = 'failed' and o.deleted_at is null
       and (o.claimed_at <= clock_timestamp() + make_interval(hours => p_warn_days * 24) - t.ttl or o.claimed_at is null)
       and core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at)
           <= clock_timestamp() + make_interval(hours => p_warn_days * 24) - t.ttl) f
  left join (select * from core.retention_runs r order by r.started_at desc limit 1) r on true;
end
$$;
-- +goose StatementEnd
grant execute on function core.retention_status(integer) to spectral_worker, spectral_operator, spectral_retention;

-- +goose StatementBegin
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
-- +goose StatementEnd
grant execute on function core.retention_due_in(double precision) to spectral_worker, spectral_operator, spectral_retention;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.retention_due_in(double precision);
drop function core.retention_status(integer);
