-- core.outbox_make_plain() takes core.outbox_make_partitioned back: the largest partition becomes core.outbox, and
-- what waits or has failed in the others moves to it at once. The rest of theirs, delivered and discarded, is in
-- core.outbox_partitioned, for the caller to move, and then to drop it. Refuses (55000) if more than 10,000 events
-- would have to move at once. For the owner.
create function core.outbox_make_plain() returns void language plpgsql volatile
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' set enable_seqscan = off set jit = off as $$
declare
  v_kept constant regclass := (select i.inhrelid from pg_inherits i where i.inhparent = 'core.outbox'::regclass
    order by pg_relation_size(i.inhrelid) desc, i.inhrelid limit 1);
  v_kept_name constant name := (select c.relname from pg_class c where c.oid = v_kept);
  v_trigger text;
  v record;
begin
  if (select count(*) from (select from core.outbox o where o.tableoid <> v_kept and o.deleted_at is null
      and o.status in ('pending', 'in_flight', 'relayed', 'failed') limit 10001) o) > 10000 then
    raise exception 'more than 10000 events that wait or have failed are in other partitions than %', v_kept_name
      using errcode = 'object_not_in_prerequisite_state',
        hint = 'let workers handle what waits, and replay or discard what failed';
  end if;
  lock table core.outbox in access exclusive mode;
  select pg_get_triggerdef(t.oid) into strict v_trigger from pg_trigger t
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
  execute v_trigger;
  perform core.outbox_hand_over('outbox_partitioned', 'outbox');
  for v in select unnest(array['pending', 'in_flight', 'relayed', 'failed']) as status loop -- each by its index
    execute format('with moved as (delete from core.outbox_partitioned p where p.status = %L and p.deleted_at is null '
      'returning *) insert into core.outbox select * from moved', v.status);
  end loop;
end
$$;
