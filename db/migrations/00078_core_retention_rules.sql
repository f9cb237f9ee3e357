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
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.key_in_outbox(uuid, text);
drop function core.outbox_retained_from(text, timestamptz, timestamptz, timestamptz);
