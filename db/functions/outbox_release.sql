-- core.outbox_release(p_ids, p_occurred_ats, p_tokens) gives leased rows back as if they had not been leased:
-- due at once, the attempt taken back. For a worker that stops. Returns the tokens of those that were
-- the caller's and are not locked, which may be about to be settled. Wakes the listeners at commit. Planned at
-- each call, which is once in a stop: a plan from an empty table reads all leases for each. Writes core.outbox.
create function core.outbox_release(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_channel text;
  v_token uuid;
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
begin
  for v_id, v_channel, v_token in
    update core.outbox o set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
        attempts = greatest(o.attempts - 1, 0), available_at = clock_timestamp() from
      (select l.id, l.occurred_at, g.token from unnest(p_ids, p_occurred_ats, p_tokens) as g(id, occurred_at, token)
       join core.outbox l on l.id = g.id and l.occurred_at = g.occurred_at
       where l.id = any (p_ids) and case when l.status = 'in_flight' then l.deleted_at is null else false end
         and l.claim_token = g.token and core.lease_holds(l.claimed_at, l.lease_seconds)
       for update of l skip locked) as k where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
    returning o.id, o.channel, k.token loop
    v_ids := v_ids || v_id;
    v_channels := v_channels || v_channel;
    return next v_token;
  end loop;
  perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
    from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
end
$$;
