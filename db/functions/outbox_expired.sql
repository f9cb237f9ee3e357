-- core.outbox_expired(...) says whether a row of core.outbox is to be tombstoned: its retention counts from p_expired
-- or before, and no operator has taken a discard of it back since p_undiscarded_since. A part of the statement that
-- calls it, which a CASE keeps from partial indexes: they might be read from end to end.
create function core.outbox_expired(p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz,
  p_failed_at timestamptz, p_deleted_at timestamptz, p_undiscarded_at timestamptz, p_expired timestamptz,
  p_undiscarded_since timestamptz) returns boolean
language sql immutable as $$
  select case when p_deleted_at is null
    and core.outbox_retained_from(p_status, p_occurred_at, p_delivered_at, p_failed_at) <= p_expired
              then case when p_status = 'failed' then coalesce(p_undiscarded_at <= p_undiscarded_since, true)
                else true end
              else false end
$$;
