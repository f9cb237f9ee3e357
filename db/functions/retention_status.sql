-- core.retention_status(p_warn_days) returns one row: the fault of the stored policies (null: none); how many failed,
-- not discarded events will be tombstoned within so many days unless they are replayed before, and when the first of
-- them is (null: none); and when a sweep last began (null: never). Fast whatever core.outbox holds. Refuses days that
-- are not from 0 to 36500 (SP051). Reads core.outbox, core.retention_policies.
create function core.retention_status(p_warn_days integer default 7) returns table (policy_fault text,
  failed_expiring bigint, failed_expire_first_at timestamptz, swept_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
#variable_conflict use_column
begin
  if p_warn_days is null or p_warn_days not between 0 and 36500 then
    raise exception 'warn_days: % must be from 0 to 36500', coalesce(p_warn_days::text, 'null')
      using errcode = 'SP051', column = 'warn_days';
  end if;
  return query
  select core.retention_policies_check(), count(*),
         min(greatest(core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at) + t.ttl,
                      o.undiscarded_at + t.grace)),
         (select p.swept_at from core.retention_policies p where p.subject = 'outbox_row')
  from (select make_interval(hours => p.active_ttl_days * 24) as ttl,
    make_interval(hours => p.tombstoned_grace_days * 24) as grace,
               clock_timestamp() + make_interval(hours => p_warn_days * 24) as until
        from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*') t,
       core.outbox o where o.status = 'failed' and o.deleted_at is null
    and (o.claimed_at <= t.until - t.ttl or o.claimed_at is null)
    and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          t.until - t.ttl, t.until - t.grace);
end
$$;
