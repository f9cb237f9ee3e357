-- core.outbox_partition_table(p_name) makes an empty table in the form of core.outbox. It is no partition yet. For the
-- owner.
create function core.outbox_partition_table(p_name name) returns void language plpgsql volatile as $$
begin
  -- the storage parameters are those of the table, or of its partitions
  execute format('create table core.%I (like core.outbox including all) with (%s)', p_name,
    (select array_to_string(c.reloptions, ', ') from pg_class c
     where c.reloptions is not null and (c.oid = 'core.outbox'::regclass
       or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = 'core.outbox'::regclass))
     order by c.oid limit 1));
  if exists (select from pg_constraint k where k.conrelid = format('core.%I', p_name)::regclass
    and k.conname = 'outbox_before') then -- that of core.outbox_make_partitioned
    execute format('alter table core.%I drop constraint outbox_before', p_name);
  end if;
end
$$;
