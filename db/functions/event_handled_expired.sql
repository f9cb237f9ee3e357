-- core.event_handled_expired(...) says whether a row of core.event_handled is to be tombstoned: handled at p_expired or
-- before, and nothing that it is about may come back. Reads core.outbox.
create function core.event_handled_expired(p_event_id uuid, p_idempotency_key text, p_handled_at timestamptz,
  p_deleted_at timestamptz, p_expired timestamptz) returns boolean
language sql stable as $$
  select case when p_deleted_at is null and p_handled_at <= p_expired
    then not core.key_in_outbox(p_event_id, p_idempotency_key) else false end
$$;
