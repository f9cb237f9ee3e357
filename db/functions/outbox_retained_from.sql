-- core.outbox_retained_from(...) is the time that an event's retention counts from: it occurred and it is settled.
-- Null, which no comparison is true of: pending or in flight, and never swept. Not occurred_at alone, which a producer
-- may set to any time since 2000, and which a paused or scheduled event is far from when it is settled: a failed one
-- would be gone before anybody has seen it.
create function core.outbox_retained_from(p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz,
  p_failed_at timestamptz) returns timestamptz
language sql immutable as $$
  select case p_status when 'delivered' then greatest(p_occurred_at, p_delivered_at)
                       when 'failed' then greatest(p_occurred_at, p_failed_at) end
$$;
