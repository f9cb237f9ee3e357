-- core.outbox_release(p_ids, p_occurred_ats, p_tokens) gives leased rows back as if they had not been leased:
-- due at once, the attempt taken back. For a worker that stops. Returns the tokens of those that were
-- the caller's. Wakes the listeners at commit. Writes core.outbox.
create function core.outbox_release(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[]) returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_channel text;
  v_token uuid;
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_floor
begin
  for v_id, v_channel, v_token in
    update core.outbox o
    set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
        attempts = greatest(o.attempts - 1, 0), available_at = clock_timestamp()
    from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, occurred_at, token)
    where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at
      and case when o.status = 'in_flight' then o.deleted_at is null else false end
      and o.claim_token = k.token and core.lease_holds(o.claimed_at, o.lease_seconds)
    returning o.id, o.channel, k.token
  loop
    v_ids := v_ids || v_id;
    v_channels := v_channels || v_channel;
    return next v_token;
  end loop;
  for v_channel, v_id in select distinct on (n.channel) n.channel, n.id from unnest(v_channels, v_ids) as n(channel, id) order by n.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
end
$$;
grant execute on function core.outbox_release(uuid[], timestamptz[], uuid[]) to spectral_worker;
