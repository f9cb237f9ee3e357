-- core.outbox_heartbeat(p_ids, p_occurred_ats, p_tokens, p_handlers) renews leases. The i-th id, occurred_at and token
-- name row i; the i-th of p_handlers, where given, is recorded as the handler that runs. Returns true for each token
-- whose lease is renewed, and locked until the transaction ends, and false for a token that holds no lease any more. It
-- does not wait for a row that another session has locked, and does not return its token: ask again. Writes
-- core.outbox.
create function core.outbox_heartbeat(p_ids uuid[], p_occurred_ats timestamptz[], p_tokens uuid[],
  p_handlers text[] default null) returns table (token uuid, held boolean)
language sql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
  with given as materialized
    (select k.id, k.occurred_at, k.token, k.handler
     from unnest(p_ids, p_occurred_ats, p_tokens, p_handlers) as k(id, occurred_at, token, handler)),
  locked as materialized
    (select g.id, g.occurred_at, g.token, g.handler
     from given g join core.outbox o on o.id = g.id and o.occurred_at = g.occurred_at
     -- a CASE hides the condition of the partial index from plans made when nothing was in flight
     where o.id = any (p_ids) and case when o.status = 'in_flight' then o.deleted_at is null else false end
       and o.claim_token = g.token
       and core.lease_holds(o.claimed_at, o.lease_seconds) for update of o skip locked),
  renewed as
    (update core.outbox o set claimed_at = clock_timestamp(), lease_handler = coalesce(l.handler, o.lease_handler)
     from locked l where o.id = any (p_ids) and o.id = l.id and o.occurred_at = l.occurred_at returning l.token)
  select r.token, true from renewed r
  union all
  select g.token, false from given g where not exists (select from renewed r where r.token = g.token) and not exists
    (select from core.outbox o where o.id = any (p_ids) and o.id = g.id and o.occurred_at = g.occurred_at
       and case when o.status = 'in_flight' then o.deleted_at is null else false end
       and o.claim_token = g.token and core.lease_holds(o.claimed_at, o.lease_seconds))
$$;
