-- core.uuid_v7_floor(p_at) is the least id that core.uuid_v7() could make at that time.
create function core.uuid_v7_floor(p_at timestamptz) returns uuid language sql immutable as $$
  select (lpad(to_hex(floor(extract(epoch from p_at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
