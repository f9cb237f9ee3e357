-- core.outbox_make_plain() takes core.outbox_make_partitioned back: the partition with the most rows becomes
-- core.outbox, and what is not delivered in the others moves to it at once. Their delivered events are in
-- core.outbox_partitioned, for the caller to move, and then to drop it. Refuses (55000) if more than 10,000 events
-- would have to move at once. For the owner.
create function core.outbox_make_plain() returns void language plpgsql volatile
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' set enable_seqscan = off set jit = off as $$
declare
  v_kept regclass;
  v_kept_name name;
  v_trigger text;
  v_comment text;
  v_privileges aclitem[];
  v record;
  v_status text;
  v_rows bigint;
  v_moved bigint := 0;
begin
  lock table core.outbox in access exclusive mode;
  select i.inhrelid::regclass, c.relname into strict v_kept, v_kept_name
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = 'core.outbox'::regclass order by c.reltuples desc, c.relpages desc, c.relname desc limit 1;
  select pg_get_triggerdef(t.oid), obj_description(t.tgrelid, 'pg_class'), c.relacl
  into strict v_trigger, v_comment, v_privileges
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
  where t.tgrelid = 'core.outbox'::regclass and t.tgname = 'outbox_notify';
  drop trigger outbox_notify on core.outbox;
  execute format('alter table core.outbox detach partition %s', v_kept);
  for v in select x.relname as whole, p.relname as part from pg_index i join pg_class x on x.oid = i.indexrelid
      join pg_index k on k.indrelid = v_kept join pg_class p on p.oid = k.indexrelid
    where i.indrelid = 'core.outbox'::regclass and replace(pg_get_indexdef(i.indexrelid), ' ONLY ', ' ')
      = replace(replace(pg_get_indexdef(k.indexrelid), p.relname || ' ON', x.relname || ' ON'),
        v_kept_name || ' USING', 'outbox USING') loop
    execute format('alter index core.%I rename to %I', v.whole,
      'outbox_partitioned' || substr(v.whole, length('outbox') + 1));
    execute format('alter index core.%I rename to %I', v.part, v.whole);
  end loop;
  alter table core.outbox rename to outbox_partitioned;
  execute format('alter table core.%I rename to outbox', v_kept_name);
  execute format('comment on table core.outbox is %L', v_comment);
  execute v_trigger;
  perform core.outbox_move_privileges('outbox_partitioned', 'outbox', v_privileges);
  foreach v_status in array array['pending', 'in_flight', 'failed'] loop -- each by its index
    execute format('with moved as (delete from core.outbox_partitioned p where p.status = %L and p.deleted_at is null '
      'returning *) insert into core.outbox select * from moved', v_status);
    get diagnostics v_rows = row_count;
    v_moved := v_moved + v_rows;
  end loop;
  if v_moved > 10000 then
    raise exception 'more than 10000 events that are not delivered are in other partitions than %', v_kept_name
      using errcode = 'object_not_in_prerequisite_state',
        hint = 'let workers handle what waits, and replay or discard what failed';
  end if;
end
$$;
