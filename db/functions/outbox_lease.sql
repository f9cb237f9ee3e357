-- core.outbox_lease(...) claims up to p_limit due rows of one type and generation beyond the caller's transaction
-- (leased mode): they are in_flight under a fresh token each, for p_lease seconds from claimed_at on by the database
-- clock, and the attempt is counted. Whatever is then done to one names its token. p_worker says who the caller is,
-- differently for each start of a process, in at most 2,000 bytes; a name in p_handlers has 256 at most: what is
-- written of a lease must fit when it runs out. handled lists those of p_handlers that have the event's key in
-- core.event_handled already and need not run. p_crashed true takes only rows with crashes, false only others, null
-- all. Rows that others hold are skipped; rows without crashes that were available before p_watermark are not looked
-- for, nor quarantined ones. Nothing of a type that is paused. With p_probe it claims rows that wait for the breaker of
-- that handler. Breakers: handlers whose breakers are open; if all of p_handlers are, due rows are made to wait, and
-- none is returned. No more than 16 MiB of payload and one row. Writes core.outbox; reads core.event_handled,
-- core.paused_types, core.breakers, core.quarantined_events.
create function core.outbox_lease(p_generation bigint, p_event_type text, p_limit integer default 1,
  p_lease double precision default 300, p_worker text default null, p_handlers text[] default '{}',
  p_watermark timestamptz default '-infinity', p_crashed boolean default null, p_probe text default null)
returns table (event_id uuid,
  event_type text, event_version integer, occurred_at timestamptz, source text, target text, content_class text,
  workspace_id uuid, payload jsonb, idempotency_key text, trace_context text, attempts integer, handler_failures jsonb,
  crashes integer, claim_token uuid, handled text[], available_at timestamptz, replayed boolean, breakers text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_due refcursor;
  v_from timestamptz := p_watermark;
  v_to timestamptz := statement_timestamp();
  v_row record;
  v_bytes bigint := 0;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if p_lease is null or not (p_lease > 0 and p_lease <= 86400) then
    raise exception 'p_lease %: must be above 0 and at most 86400 seconds', p_lease
      using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(p_worker) > 2000 then
    raise exception 'p_worker: % bytes, 2000 are the most', octet_length(p_worker)
      using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from unnest(p_handlers) as h(name) where octet_length(h.name) > 256) then
    raise exception 'p_handlers: a name has more than 256 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type) then
    return;
  end if;
  breakers := (select array_agg(b.handler_name) from core.breakers b
    where b.generation = p_generation and b.event_type = p_event_type and not b.closing);
  if p_probe is null and breakers @> p_handlers and cardinality(p_handlers) > 0 then -- there is nothing to run
    perform core.outbox_wait(p_generation, d.handler, array_agg(d.id), array_agg(d.occurred_at))
    from (select o.id, o.occurred_at,
        (select h.name from unnest(p_handlers) as h(name) where core.handles(h.name, o.target) limit 1) as handler
      from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending'
        and o.deleted_at is null and o.available_at <= statement_timestamp() and o.available_at >= p_watermark
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit 1000 for update skip locked) d
    where d.handler is not null group by d.handler;
  end if;
  if p_probe is not null then -- the times of those that wait, which are far ahead, by their own index
    select min(w.available_at), max(w.available_at) into v_from, v_to
    from (select o.available_at from core.outbox o
      where o.generation = p_generation and o.waiting_for = p_probe and o.status = 'pending' and o.deleted_at is null
      order by o.available_at limit p_limit) w;
  end if;
  if p_crashed then
    open v_due for
      select o.id, o.payload, o.idempotency_key from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
        and o.available_at <= statement_timestamp()
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit for update of o skip locked;
  else
    open v_due for
      select o.id, o.payload, o.idempotency_key from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null
        and o.available_at >= v_from and o.available_at <= v_to and (p_probe is null or o.waiting_for = p_probe)
        and (p_crashed is null or o.crashes = 0 or p_probe is not null)
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit for update of o skip locked;
  end if;
  -- a loop fetches, and so locks, little more than it returns
  loop
    fetch v_due into v_row;
    exit when not found;
    update core.outbox o
    set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(), claimed_by = p_worker,
        -- given back by a probe it is due, and waits again
        available_at = case when o.waiting_for is null then o.available_at else clock_timestamp() end,
        waiting_for = null,
        lease_seconds = p_lease, attempts = least(o.attempts, 999999999) + 1,
        lease_handler = case when cardinality(p_handlers) = 1 then p_handlers[1] end where current of v_due
    returning o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
      o.payload, o.idempotency_key, o.trace_context, o.attempts, o.handler_failures, o.crashes, o.claim_token,
      o.available_at, o.failure_history <> '[]' and core.prior_replays(o.failure_history) > 0
    into event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id,
      payload, idempotency_key, trace_context, attempts, handler_failures, crashes, claim_token, available_at,
      replayed;
    if claim_token is null then perform core.row_kept(); end if;
    handled := array(select h.handler_name from core.event_handled h
                     where h.handler_name = any (p_handlers) and h.idempotency_key = v_row.idempotency_key);
    return next;
    v_bytes := v_bytes + core.payload_bytes(v_row.payload) + core.payload_bytes(handler_failures);
    exit when v_bytes >= 16777216;
  end loop;
  close v_due;
end
$$;
