-- core.outbox_watermark(p_generation, p_event_type, p_watermark) takes a sample by which a claim watermark can rise. It
-- returns the oldest available_at from p_watermark on that is pending, locked and quarantined rows included (null:
-- none), and the lowest transaction id still running, both of one snapshot; and a time, and a transaction id taken
-- after it. Once that id is not above the lowest running one, every row stamped before the time is visible or gone, and
-- the watermark may rise to the time, or to the oldest pending row if that is less. pg_snapshot_xmax would not do: ids
-- that are given out may lie above it. Reads core.outbox.
create function core.outbox_watermark(p_generation bigint, p_event_type text,
  p_watermark timestamptz) returns table (oldest timestamptz, lowest_running bigint, sampled_at timestamptz,
    sample_id bigint)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'core.outbox_watermark: this transaction took its id before the time could be read'
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  sampled_at := clock_timestamp();
  sample_id := pg_current_xact_id()::text::bigint;
  select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
         (select o.available_at from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
            and o.status = 'pending' and o.deleted_at is null and o.available_at >= p_watermark
          order by o.available_at limit 1) into lowest_running, oldest;
  return next;
end
$$;
