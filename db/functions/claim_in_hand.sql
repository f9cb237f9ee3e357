-- core.claim_in_hand(p_ids, p_claimed_at) says whether any row of a claim is as it was claimed:
-- not settled and not due anew. Reads core.outbox.
create function core.claim_in_hand(p_ids uuid[], p_claimed_at timestamptz) returns boolean
language sql stable
as $$
  select exists (select from core.outbox o where o.id = any (p_ids) and o.status = 'pending' and o.deleted_at is null
                   and o.available_at <= p_claimed_at)
$$;
