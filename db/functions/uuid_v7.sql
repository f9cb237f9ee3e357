-- core.uuid_v7() returns a version 7 UUID (RFC 9562): 48 bits of Unix milliseconds, then random
-- bits, so that ids made one after another stay close together in an index. The database clock
-- is read. Touches no table. Without a SET clause, so that Postgres puts it into the statements of its callers.
create function core.uuid_v7() returns pg_catalog.uuid language sql volatile parallel safe as $$
  -- a random version 4 UUID whose first six bytes become the time; 0100 + two bits = 0111
  select pg_catalog.encode(pg_catalog.set_bit(pg_catalog.set_bit(
    overlay(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) placing substring(pg_catalog.int8send(
      (extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000)::pg_catalog.int8) from 3)
      from 1 for 6), 52, 1), 53, 1), 'hex')::pg_catalog.uuid
$$;
