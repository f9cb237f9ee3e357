-- core.outbox_deliver_leased(p_ids, p_occurred_ats, p_tokens) settles leased rows as delivered; their attempt was
-- counted as they were leased. Returns the tokens of those that were the caller's. Raises an error if a trigger keeps
-- one of them as it is. Writes core.outbox.
create function core.outbox_deliver_leased(p_ids uuid[], p_occurred_ats timestamptz[],
  p_tokens uuid[]) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
  return query
    with written as (
      update core.outbox o
      set status = 'delivered', delivered_at = clock_timestamp(), claim_token = null, claimed_by = null,
        lease_handler = null
      from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
      where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
        and case when o.status = 'in_flight' then o.deleted_at is null else false end
        and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds) returning k.token, o.status)
    -- a trigger may have changed the new row
    select w.token from written w where case w.status when 'delivered' then true else core.row_kept() is null end;
  perform core.lease_settled(p_ids, p_occurred_ats, p_tokens);
end
$$;
