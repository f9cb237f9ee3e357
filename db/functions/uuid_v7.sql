-- core.uuid_v7() returns a version 7 UUID (RFC 9562): 48 bits of Unix milliseconds, then random
-- bits, so that ids made one after another stay close together in an index. The database clock
-- is read. Touches no table.
create function core.uuid_v7() returns uuid
language sql volatile parallel safe set search_path = pg_catalog, core, pg_temp as $$
  select encode(
    -- a random version 4 UUID whose first six bytes become the time; 0100 + two bits = 0111
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
