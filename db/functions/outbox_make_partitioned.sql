-- core.outbox_make_partitioned(p_until) makes core.outbox a table of monthly partitions. What it is now becomes the
-- first one, outbox_until_YYYY_MM, of all events before p_until: no row moves. Its constraint outbox_before must be
-- validated, or it is read while it is locked. outbox_rest gets the events of months without a partition, and
-- core.outbox_partitions_ahead makes months. For the owner.
create function core.outbox_make_partitioned(p_until timestamptz) returns void language plpgsql volatile
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' as $$
declare
  v_first constant name := 'outbox_until_' || to_char(p_until, 'YYYY_MM');
  v_indexes text[];
  v_trigger text;
  v_name name;
  v_statement text;
begin
  lock table core.outbox in access exclusive mode;
  select array_agg(pg_get_indexdef(i.indexrelid)) into v_indexes from pg_index i
  where i.indrelid = 'core.outbox'::regclass and not i.indisprimary;
  select pg_get_triggerdef(t.oid) into strict v_trigger from pg_trigger t
  where t.tgrelid = 'core.outbox'::regclass and t.tgname = 'outbox_notify';
  drop trigger outbox_notify on core.outbox;
  for v_name in select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = 'core.outbox'::regclass loop
    execute format('alter index core.%I rename to %I', v_name, v_first || substr(v_name, length('outbox') + 1));
  end loop;
  execute format('alter table core.outbox rename to %I', v_first);
  execute format('create table core.outbox (like core.%I including defaults including constraints including comments) '
    'partition by range (occurred_at)', v_first);
  alter table core.outbox drop constraint outbox_before;
  alter table core.outbox add constraint outbox_pk primary key (id, occurred_at);
  foreach v_statement in array v_indexes loop
    execute v_statement;
  end loop;
  execute format('alter table core.outbox attach partition core.%I for values from (minvalue) to (%L)', v_first,
    p_until);
  execute format('alter table core.%I drop constraint outbox_before', v_first);
  perform core.outbox_partition_table('outbox_rest');
  alter table core.outbox attach partition core.outbox_rest default;
  execute v_trigger;
  perform core.outbox_hand_over(v_first, 'outbox');
end
$$;
