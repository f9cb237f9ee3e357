-- core.retention_status(p_warn_days) is one row about retention: what is wrong with the policies (null: nothing); the failed, not discarded
-- events that will be tombstoned within so many days unless they are replayed before, as the sweep judges it (core.outbox_expired), how many and when the first of them is (null: none);
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
            min(greatest(core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at) + t.ttl,
                         o.undiscarded_at + t.grace)) as first_at
     from (select make_interval(hours => p.active_ttl_days * 24) as ttl, make_interval(hours => p.tombstoned_grace_days * 24) as grace,
                  clock_timestamp() + make_interval(hours => p_warn_days * 24) as until
           from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*') t,
          core.outbox o
     where o.status = 'failed' and o.deleted_at is null
       and (o.claimed_at <= t.until - t.ttl or o.claimed_at is null)
       and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
             t.until - t.ttl, t.until - t.grace)) f
  left join (select * from core.retention_runs r order by r.started_at desc limit 1) r on true;
end
$$;
grant execute on function core.retention_status(integer) to spectral_operator, spectral_retention, spectral_worker;
