-- core.payload_bytes(p_payload, p_refuse) returns about how many bytes a payload, or handler_failures, has as text,
-- without making that text: a number of few bytes, such as 1e131071, may have 131072 digits, and a server may work on
-- thousands of them for half a minute, or run out of memory. Above 16 MiB, far more than core.outbox_check accepts, it
-- counts no further, and raises an error unless p_refuse is false.
create function core.payload_bytes(p_payload jsonb, p_refuse boolean default true) returns bigint
language plpgsql immutable as $$
declare
  c_most constant bigint := 16777216;
  c_few constant bigint := 16384; -- with so few numbers in it, the text is no danger
  c_long constant jsonpath := 'strict $.** ? (@ > 1e100 || @ < -1e100 || (@ < 1e-100 && @ > -1e-100 && @ != 0))';
  v_bytes bigint := pg_column_size(p_payload || '{}'); -- not compressed
  v_number jsonb;
begin
  if v_bytes > c_few and v_bytes <= c_most then
    begin
      if p_payload @? c_long then
        for v_number in select n from jsonb_path_query(p_payload, c_long) n loop
          v_bytes := v_bytes + octet_length(v_number::text);
          exit when v_bytes > c_most;
        end loop;
      end if;
    exception when statement_too_complex then
      null; -- nested too deeply for a path; the text can be made
    end;
  end if;
  if v_bytes > c_most and p_refuse then
    raise exception 'the payload or handler_failures has more than % bytes as text', c_most
      using errcode = 'program_limit_exceeded';
  end if;
  return v_bytes;
end
$$;
