-- Breakers: a handler whose dependency is down is not called, and its events wait (docs/decisions/0024).
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.breakers (
  generation bigint not null,
  handler_name text not null,
  event_type text not null,
  opened_at timestamptz not null default clock_timestamp(),
  opened_by text not null,
  cause text not null,
  forced boolean not null default false,
  closing boolean not null default false,
  width integer not null default 1,
  failed_probes integer not null default 0,
  probes bigint not null default 0,
  next_probe_at timestamptz not null default clock_timestamp() + interval '1 second',
  probing_until timestamptz null,
  constraint breakers_pk primary key (generation, handler_name)
);
comment on table core.breakers is 'Open breakers of handlers. A closed one has no row.';
comment on column core.breakers.event_type is 'the type that the handler handles';
comment on column core.breakers.cause is 'the failure that opened it, or what an operator said';
comment on column core.breakers.forced is 'an operator opened it: without probes, until an operator closes it';
comment on column core.breakers.closing is 'what waits for it is made due again; then the row is deleted';
comment on column core.breakers.width is 'how many events the next probe may run: 1, 2, 4, 8; then it closes';
comment on column core.breakers.probing_until is 'a worker probes it, at most until then';
create index outbox_waiting on core.outbox (generation, waiting_for, available_at)
  where status = 'pending' and deleted_at is null and waiting_for is not null;
grant select on core.breakers to spectral_worker, spectral_operator;

-- +goose StatementBegin
create function core.outbox_wait(p_generation bigint, p_handler text, p_ids uuid[], p_occurred_ats timestamptz[],
  p_tokens uuid[] default null) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_open boolean;
  v_ids uuid[];
  v_channels text[];
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  perform from core.breakers b where b.generation = p_generation and b.handler_name = p_handler
    and not b.closing for share;
  v_open := found;
  with written as
    (update core.outbox o set status = 'pending', waiting_for = case when v_open then p_handler end,
      available_at = clock_timestamp() + case when v_open then interval '1000 years' else interval '0' end,
      attempts = greatest(o.attempts - case when o.status = 'in_flight' then 1 else 0 end, 0),
      claim_token = null, claimed_by = null, lease_handler = null
    where o.id = any (p_ids) and o.occurred_at between v_first and v_last
      and case when o.status = case when p_tokens is null then 'pending' else 'in_flight' end and o.deleted_at is null
        then (o.id, o.occurred_at, coalesce(o.claim_token, o.id)) in
          (select k.id, k.at, coalesce(k.token, k.id) from unnest(p_ids, p_occurred_ats, p_tokens) as k(id, at, token))
        else false end
    returning o.id, o.channel)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.channel), '{}') into v_ids, v_channels from written w;
  if not v_open then
    perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
      from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
  end if;
  return query select unnest(v_ids);
end
$$;
create function core.breaker_open(p_generation bigint, p_handler text, p_event_type text, p_cause text,
  p_opened_by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  insert into core.breakers as b (generation, handler_name, event_type, cause, opened_by)
  values (p_generation, left(p_handler, 256), left(p_event_type, 256), left(p_cause, 1000), left(p_opened_by, 256))
  on conflict (generation, handler_name) do update
  set closing = false, width = 1, probes = 0, failed_probes = 0, cause = excluded.cause,
    opened_by = excluded.opened_by, opened_at = clock_timestamp(),
    next_probe_at = excluded.next_probe_at where b.closing;
  return found;
end
$$;
create function core.breaker_probe(p_generation bigint, p_handler text, p_seconds double precision) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_width integer;
begin
  update core.breakers b set probing_until = v_now + make_interval(secs => p_seconds)
  where b.generation = p_generation and b.handler_name = p_handler and not b.forced and not b.closing
    and b.next_probe_at <= v_now and coalesce(b.probing_until <= v_now, true)
  returning b.width into v_width;
  return v_width;
end
$$;
create function core.breaker_probed(p_generation bigint, p_handler text, p_calls integer, p_failed boolean)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_closing boolean;
begin
  update core.breakers b set probing_until = null, probes = b.probes + p_calls,
    width = case when p_failed then 1 when p_calls >= b.width then b.width * 2 else b.width end,
    failed_probes = case when p_failed then least(b.failed_probes, 100) + 1 else 0 end,
    next_probe_at = clock_timestamp() + case when p_failed
      then make_interval(secs => least(2 ^ least(b.failed_probes, 10), 15))
      when p_calls = 0 then interval '5 seconds' else interval '0' end,
    closing = b.closing or not p_failed and (p_calls >= 8 or p_calls < b.width and not exists
      (select from core.outbox o where o.generation = p_generation and o.waiting_for = p_handler
         and o.status = 'pending' and o.deleted_at is null))
  where b.generation = p_generation and b.handler_name = p_handler and not b.forced
  returning b.closing into v_closing;
  return coalesce(v_closing, false);
end
$$;
create function core.breaker_release(p_generation bigint, p_handler text, p_limit integer default 1000) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_channels text[];
  v_ids uuid[];
  v_ats timestamptz[];
begin
  perform from core.breakers b where b.generation = p_generation and b.handler_name = p_handler for update;
  if exists (select from core.breakers b where b.generation = p_generation and b.handler_name = p_handler
             and not b.closing) then
    return 0;
  end if;
  select coalesce(array_agg(f.id), '{}'), coalesce(array_agg(f.occurred_at), '{}'), coalesce(array_agg(f.channel), '{}')
  into v_ids, v_ats, v_channels from (select o.id, o.occurred_at, o.channel from core.outbox o
    where o.generation = p_generation and o.waiting_for = p_handler and o.status = 'pending' and o.deleted_at is null
      and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
    order by o.available_at limit least(p_limit, 10000) for update skip locked) f;
  begin
    update core.outbox o set waiting_for = null, available_at = clock_timestamp()
    where o.id = any (v_ids)
      and case when o.status = 'pending' then (o.id, o.occurred_at) in (select * from unnest(v_ids, v_ats))
        else false end;
  exception when others then
    if not core.row_fault(sqlstate) then raise; end if;
    for n in 1..cardinality(v_ids) loop -- one that cannot be written must not keep the others
      begin
        update core.outbox o set waiting_for = null, available_at = clock_timestamp()
        where o.id = v_ids[n] and o.occurred_at = v_ats[n];
      exception when others then
        if not core.row_fault(sqlstate) then raise; end if;
        perform core.outbox_give_up(v_ids[n], v_ats[n], null, sqlstate || ': ' || sqlerrm);
      end;
    end loop;
  end;
  perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
    from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
  if cardinality(v_ids) = 0 and not exists (select from core.outbox o where o.generation = p_generation
       and o.waiting_for = p_handler and o.status = 'pending' and o.deleted_at is null
       and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)) then
    delete from core.breakers b where b.generation = p_generation and b.handler_name = p_handler;
  end if;
  return cardinality(v_ids);
end
$$;
create function core.handler_trip(p_generation bigint, p_handler text, p_tripped_by text default null,
  p_reason text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_type text := (select min(h.event_type) from core.handlers h
    where h.generation = p_generation and h.handler_name = p_handler);
begin
  if btrim(p_reason) = '' or octet_length(p_reason) > 1000 then
    raise exception 'reason: must be 1 to 1000 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  if v_type is null then
    raise exception 'handler: no worker of generation % has registered %', p_generation,
      coalesce(quote_literal(left(p_handler, 200)), 'null')
      using errcode = 'SP031', column = 'handler', hint = '`workers handlers list` lists them';
  end if;
  perform core.operator_action('handler_trip', p_tripped_by, '{}', p_generation,
    jsonb_build_object('handler', p_handler, 'reason', btrim(p_reason)));
  insert into core.breakers as b (generation, handler_name, event_type, cause, opened_by, forced)
  values (p_generation, p_handler, v_type, coalesce(btrim(p_reason), 'by an operator'),
    coalesce(btrim(p_tripped_by), session_user), true)
  on conflict (generation, handler_name) do update
  set forced = true, closing = false, cause = excluded.cause, opened_by = excluded.opened_by,
    opened_at = excluded.opened_at where not b.forced;
  if not found then
    raise exception 'handler %: its breaker is open already, by an operator', p_handler
      using errcode = 'SP034', column = 'handler', hint = 'there is nothing to do';
  end if;
end
$$;
create function core.handler_close(p_generation bigint, p_handler text, p_closed_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  update core.breakers b set closing = true, forced = false
  where b.generation = p_generation and b.handler_name = p_handler;
  if not found then
    raise exception 'handler %: its breaker is not open in generation %',
      coalesce(quote_literal(left(p_handler, 200)), 'null'), p_generation
      using errcode = 'SP034', column = 'handler', hint = '`workers handlers list` lists those that are';
  end if;
  perform core.operator_action('handler_close', p_closed_by, '{}', p_generation,
    jsonb_build_object('handler', p_handler));
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_wait, core.breaker_open, core.breaker_probe, core.breaker_probed,
  core.breaker_release to spectral_worker;
grant execute on function core.breaker_release, core.handler_trip, core.handler_close to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.breakers');
drop function core.outbox_wait, core.breaker_open, core.breaker_probe, core.breaker_probed, core.breaker_release,
  core.handler_trip, core.handler_close;
drop index core.outbox_waiting;
drop table core.breakers;
