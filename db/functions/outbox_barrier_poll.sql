-- core.outbox_barrier_poll(p_channels, ...) tries core.outbox_barrier on each channel, then polls; core.outbox_poll has
-- the other parameters. The poll's snapshot is from after the barrier, because the function is volatile and called at
-- READ COMMITTED. It returns whether the barrier was passed on all channels with each row of the poll, and once, with
-- nulls, if that has none. Reads what core.outbox_poll reads.
create function core.outbox_barrier_poll(p_channels text[], p_generation bigint, p_event_types text[],
  p_watermarks timestamptz[], p_held uuid[] default '{}', p_held_at timestamptz[] default '{}')
returns table (passed boolean, event_type text, oldest_due timestamptz, next_in double precision, crashed boolean)
language plpgsql volatile set search_path = pg_catalog, core, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_passed boolean := true;
  v_channel text;
begin
  foreach v_channel in array coalesce(p_channels, '{}') loop
    v_passed := core.outbox_barrier(v_channel) and v_passed;
  end loop;
  return query
    select v_passed, p.event_type, p.oldest_due, p.next_in, p.crashed from (select) as once
    left join core.outbox_poll(p_generation, p_event_types, p_watermarks, p_held, p_held_at) as p on true;
end
$$;
