-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- core.outbox_retained_from(...) is the time that an event's retention counts from: it occurred and it is settled. Null, which no
-- comparison is true of: pending or in flight, and never swept. Not occurred_at alone, which a producer may
-- set to any time since 2000, and which a paused or scheduled event is far from when it is settled: a failed one
-- would be gone before anybody has seen it.
create function core.outbox_retained_from(
  p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz, p_failed_at timestamptz
) returns timestamptz
language sql immutable
return case p_status when 'delivered' then greatest(p_occurred_at, p_delivered_at)
                     when 'failed' then greatest(p_occurred_at, p_failed_at) end;

-- +goose StatementBegin
-- core.key_in_outbox(p_event_id, p_idempotency_key) says whether an event that what was handled is about may come
-- back: the one that was handled, in whatever status as long as its row exists, or another of the same key that is not
-- delivered. Planned where it is called, so by the caller's settings. Reads core.outbox.
create function core.key_in_outbox(p_event_id uuid, p_idempotency_key text) returns boolean
language sql stable
begin atomic
  select exists (select from core.outbox o where o.id = p_event_id)
      or exists (select from core.outbox o
                 where o.idempotency_key = p_idempotency_key and o.status <> 'delivered' and o.idempotency_key <> o.id::text);
end;
-- +goose StatementEnd

-- core.outbox_expired(...) says whether a row of core.outbox is to be tombstoned: its retention counts from p_expired or before, and no
-- operator has taken a discard of it back since p_undiscarded_since. A part of the statement that calls it, which a CASE keeps from
-- partial indexes: they might be read from end to end.
create function core.outbox_expired(
  p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz, p_failed_at timestamptz, p_deleted_at timestamptz,
  p_undiscarded_at timestamptz, p_expired timestamptz, p_undiscarded_since timestamptz
) returns boolean
language sql immutable
return case when p_deleted_at is null and core.outbox_retained_from(p_status, p_occurred_at, p_delivered_at, p_failed_at) <= p_expired
            then case when p_status = 'failed' then coalesce(p_undiscarded_at <= p_undiscarded_since, true) else true end
            else false end;

-- core.event_handled_expired(...) says whether a row of core.event_handled is to be tombstoned: handled at p_expired or before, and
-- nothing that it is about may come back. Reads core.outbox.
create function core.event_handled_expired(
  p_event_id uuid, p_idempotency_key text, p_handled_at timestamptz, p_deleted_at timestamptz, p_expired timestamptz
) returns boolean
language sql stable
return case when p_deleted_at is null and p_handled_at <= p_expired then not core.key_in_outbox(p_event_id, p_idempotency_key) else false end;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.event_handled_expired(uuid, text, timestamptz, timestamptz, timestamptz);
drop function core.outbox_expired(text, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz);
drop function core.key_in_outbox(uuid, text);
drop function core.outbox_retained_from(text, timestamptz, timestamptz, timestamptz);
