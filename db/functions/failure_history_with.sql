-- core.failure_history_with(p_history, p_entry) returns the history with one more entry at its end, and never without
-- it: of more than 100 entries, or 256 KiB of JSON, the oldest that the reaper wrote are left out first and then the
-- oldest others; the first entry then says how many were, {"omitted": n}.
create function core.failure_history_with(p_history jsonb, p_entry jsonb) returns jsonb
language plpgsql immutable as $$
declare
  v_all constant jsonb := p_history || jsonb_build_array(p_entry);
begin
  if jsonb_array_length(v_all) <= 100 and octet_length(v_all::text) <= 262144 then return v_all; end if;
  return (
    with entries as
      (select e.value, e.n, e.value ? 'omitted' as omits,
              case when jsonb_typeof(e.value -> 'omitted') = 'number' then (e.value ->> 'omitted')::numeric
                else 0 end as omitted,
              row_number() over dear as place, sum(octet_length(e.value::text) + 2) over dear as bytes
       from jsonb_array_elements(v_all) with ordinality as e(value, n)
       -- the new one, what operators did, what was reaped; the latest first
       window dear as (partition by e.value ? 'omitted'
         order by e.n = jsonb_array_length(v_all) desc, e.value ? 'reaped_at', e.n desc)),
    marked as
      (select e.value, e.n, e.omitted, not e.omits and e.place <= 99
        and (e.place = 1 or e.bytes <= 262144 - 100) as kept, e.omits from entries e)
    select jsonb_build_array(jsonb_build_object('omitted',
      sum(j.omitted) + count(*) filter (where not j.kept and not j.omits)))
           || jsonb_agg(j.value order by j.n) filter (where j.kept) from marked j);
end
$$;
