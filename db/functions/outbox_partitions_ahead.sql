-- core.outbox_partitions_ahead() makes the partitions of core.outbox that are missing up to the month after the next,
-- and returns their names. It does nothing if core.outbox is no partitioned table. It waits half a second for a lock.
-- Events of a month without a partition are in core.outbox_rest; a month that has some there gets none
-- (docs/decisions/0020).
create function core.outbox_partitions_ahead() returns text[] language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp set lock_timeout = '500ms' set timezone = 'UTC' as $$
declare
  v_made text[] := '{}';
  v_month timestamptz;
begin
  if not exists (select from pg_partitioned_table t where t.partrelid = 'core.outbox'::regclass)
    or not pg_try_advisory_xact_lock(6140285913370954871) then
    return v_made;
  end if;
  select coalesce(max(m.ends_at), date_trunc('month', clock_timestamp())) into v_month from core.outbox_months() m;
  while v_month <= date_trunc('month', clock_timestamp()) + interval '2 months' loop
    if not exists (select from core.outbox_rest r
      where r.occurred_at >= v_month and r.occurred_at < v_month + interval '1 month') then
      v_made := v_made || ('outbox_' || to_char(v_month, 'YYYY_MM'));
      perform core.outbox_partition_table(v_made[cardinality(v_made)]::name);
      execute format('alter table core.outbox attach partition core.%I for values from (%L) to (%L)',
        v_made[cardinality(v_made)], v_month, v_month + interval '1 month');
    end if;
    v_month := v_month + interval '1 month';
  end loop;
  return v_made;
end
$$;
