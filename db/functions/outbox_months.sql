-- core.outbox_months() returns the partitions of core.outbox that have months, and when each ends. The first one has
-- all times until its end. Reads the catalog.
create function core.outbox_months() returns table (name name, ends_at timestamptz) language sql stable
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' as $$
  select c.relname, to_timestamp(right(c.relname, 7), 'YYYY_MM')
    + case when starts_with(c.relname, 'outbox_until_') then interval '0' else interval '1 month' end
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = 'core.outbox'::regclass and c.relname ~ '^outbox_(until_)?[0-9]{4}_[0-9]{2}$'
$$;
