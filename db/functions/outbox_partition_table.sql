-- core.outbox_partition_table(p_name) makes an empty table in the form of core.outbox, which has partitions. It is not
-- one of them yet. For the owner.
create function core.outbox_partition_table(p_name name) returns void language plpgsql volatile as $$
begin
  execute format('create table core.%I (like core.outbox including all) with (%s)', p_name,
    (select array_to_string(c.reloptions, ', ') from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'core.outbox'::regclass order by c.oid limit 1)); -- the storage parameters of the first
end
$$;
