-- core.lease_settled(p_ids, p_occurred_ats, p_tokens) raises an error if a lease still holds that was to be settled
-- before: then a trigger or rule keeps its row as it is. Reads core.outbox.
create function core.lease_settled(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns void
language plpgsql volatile as $$
begin
  if exists (select from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
      join core.outbox o on o.id = k.id and o.occurred_at = k.occurred_at where o.id = any (p_ids)
      and case when o.status = 'in_flight' then o.deleted_at is null else false end
      and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds)) then
    perform core.row_kept();
  end if;
end
$$;
