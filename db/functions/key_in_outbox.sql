-- core.key_in_outbox(p_event_id, p_idempotency_key) says whether an event that what was handled is about may come
-- back: the one that was handled, in whatever status as long as its row exists, or another of the same key that is not
-- delivered. Planned where it is called, so by the caller's settings. Reads core.outbox.
create function core.key_in_outbox(p_event_id uuid, p_idempotency_key text) returns boolean
language sql stable as $$
  select exists (select from core.outbox o where o.id = p_event_id) or exists (select from core.outbox o
                 where o.idempotency_key = p_idempotency_key and o.status <> 'delivered'
                   and o.idempotency_key <> o.id::text)
$$;
