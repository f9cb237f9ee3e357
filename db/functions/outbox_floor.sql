-- core.outbox_floor(p_generation, p_event_type, p_floor) measures how far the lower bound of
-- pending rows can rise. Returns the oldest available_at from p_floor on that is pending, locked
-- ones included (null: none), and the lowest transaction id still running, both of one snapshot;
-- and a mark: a time, and a transaction id taken after it. Once that id is not above the lowest
-- running one, every row stamped before the mark's time is visible or gone, and the floor may rise to
-- that time, or to the oldest pending one if that is less. Not pg_snapshot_xmax: ids that are
-- given out already may lie above it. Reads core.outbox.
create function core.outbox_floor(p_generation bigint, p_event_type text,
  p_floor timestamptz) returns table (oldest timestamptz, lowest_running bigint, mark_at timestamptz, mark_id bigint)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'core.outbox_floor: this transaction took its id before the time could be read'
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  mark_at := clock_timestamp();
  mark_id := pg_current_xact_id()::text::bigint;
  select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
         (select o.available_at from core.outbox o where o.generation = p_generation and o.event_type = p_event_type
            and o.status = 'pending' and o.deleted_at is null and o.available_at >= p_floor
          order by o.available_at limit 1) into lowest_running, oldest;
  return next;
end
$$;
