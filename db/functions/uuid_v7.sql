-- core.uuid_v7() returns a version 7 UUID (RFC 9562): 48 bits of Unix milliseconds, 12 bits of their fraction, then
-- random bits, so that ids made one after another are in order and close together in an index. The database clock is
-- read. Touches no table. Without a SET clause, so that Postgres puts it into the statements of its callers.
create function core.uuid_v7() returns pg_catalog.uuid language sql volatile parallel safe as $$
  select (overlay(pg_catalog.lpad(pg_catalog.to_hex((extract(epoch from pg_catalog.clock_timestamp())
      operator(pg_catalog.*) 4096000)::pg_catalog.int8), 15, '0') placing '7' from 13 for 0)
    operator(pg_catalog.||) pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 20))::pg_catalog.uuid
$$;
