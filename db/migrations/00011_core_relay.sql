-- The relay: events that take the way through a broker (docs/decisions/0021).
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- Which way events take. Workers without a relay handle every event from Postgres, whatever this says.
create table core.relay (
  id uuid not null default gen_random_uuid(),
  path text not null default 'postgres',
  switched_at timestamptz null,
  switched_by text null,
  constraint relay_pk primary key (id),
  constraint relay_path_known check (path in ('postgres', 'both', 'jetstream'))
);
create unique index relay_one_row on core.relay ((true));
comment on table core.relay is 'The path of events: postgres, jetstream, or both for a comparison; one row.';
comment on column core.relay.id is 'names this database to a broker, which other databases may use too';
insert into core.relay default values;
grant select on core.relay to spectral_worker, spectral_operator;

-- +goose StatementBegin
create function core.relay_switch(p_path text, p_switched_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_before text;
begin
  if p_path is null or p_path not in ('postgres', 'both', 'jetstream') then
    raise exception 'path: % must be postgres, both or jetstream', coalesce(quote_literal(left(p_path, 200)), 'null')
      using errcode = 'SP030', column = 'path';
  end if;
  perform pg_advisory_xact_lock(4480265037518190933); -- until those who mark rows have committed
  select r.path into strict v_before from core.relay r;
  perform core.operator_action('relay_switch', p_switched_by, '{}', null,
    jsonb_build_object('path', p_path, 'before', v_before));
  update core.relay r set path = p_path, switched_at = clock_timestamp(),
    switched_by = coalesce(btrim(p_switched_by), session_user);
  return v_before;
end
$$;
create function core.outbox_relayed(p_ids uuid[], p_occurred_ats timestamptz[], p_stored boolean[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
set lock_timeout = '2s' as $$
declare
  v_path text;
  v_all constant boolean := true = all (p_stored); -- nearly always
  v_relayed integer;
  v_written integer;
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  perform pg_advisory_xact_lock_shared(4480265037518190933); -- as core.relay_switch
  select r.path into strict v_path from core.relay r;
  with written as
    (update core.outbox o set
       relayed_at = case when v_all or (o.id, o.occurred_at) in
         (select k.id, k.occurred_at from unnest(p_ids, p_occurred_ats, p_stored) as k(id, occurred_at, stored)
          where k.stored) then clock_timestamp() else '-infinity' end,
       status = case when v_path = 'jetstream' and (v_all or (o.id, o.occurred_at) in
         (select k.id, k.occurred_at from unnest(p_ids, p_occurred_ats, p_stored) as k(id, occurred_at, stored)
          where k.stored)) then 'relayed' else o.status end
     where o.id = any (p_ids) and o.occurred_at between v_first and v_last
       and case when o.status = 'pending' and o.deleted_at is null
         then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
     returning o.status, o.relayed_at)
  select count(*) filter (where w.status = 'relayed'), count(w.relayed_at) into v_relayed, v_written from written w;
  if v_written <> cardinality(p_ids) then perform core.row_kept(); end if;
  return v_relayed;
end
$$;
create function core.outbox_relayed_take(p_generation bigint, p_handler text, p_ids uuid[],
  p_occurred_ats timestamptz[]) returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
begin
  return query
    select o.id from core.outbox o
    where o.id = any (p_ids) and o.occurred_at between v_first and v_last
      and case when (o.status = 'relayed' or o.status = 'pending') and o.deleted_at is null
        then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
      and o.generation = p_generation and o.crashes = 0 and not o.handler_failures ? p_handler
      and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      and not exists
        (select from core.paused_types p where p.generation = o.generation and p.event_type = o.event_type);
end
$$;
create function core.outbox_relayed_deliver(p_handlers text[], p_ids uuid[], p_occurred_ats timestamptz[])
returns table (id uuid, pending boolean)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_first constant timestamptz := (select min(t) from unnest(p_occurred_ats) t);
  v_last constant timestamptz := (select max(t) from unnest(p_occurred_ats) t);
  v_written integer;
begin
  if cardinality(p_handlers) > 1 then
    perform from (select k.id, k.occurred_at from unnest(p_ids, p_occurred_ats) as k(id, occurred_at) order by 1, 2) k
    cross join lateral
      (select from core.outbox o where o.id = k.id and o.occurred_at = k.occurred_at
         and case
           when o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null then o.deleted_at is null end
       for update) l;
  end if;
  return query
    with written as
      (update core.outbox o set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
       where o.id = any (p_ids) and o.occurred_at between v_first and v_last
         and case
           when (o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null) and o.deleted_at is null
             then (o.id, o.occurred_at) in (select * from unnest(p_ids, p_occurred_ats)) else false end
         and (cardinality(p_handlers) = 1 or not exists
           (select from unnest(p_handlers) as h(name) where core.handles(h.name, o.target) and not exists
             (select from core.event_handled e
              where e.handler_name = h.name and e.idempotency_key = o.idempotency_key)))
       returning o.id, o.status)
    select w.id, false from written w where case w.status when 'delivered' then true else core.row_kept() is null end;
  get diagnostics v_written = row_count;
  if v_written = cardinality(p_ids) then return; end if;
  return query
    select o.id, true from core.outbox o where o.id = any (p_ids) and o.occurred_at between v_first and v_last
      and case when o.status = 'pending' then o.deleted_at is null end; -- a CASE keeps it from partial indexes
end
$$;
create function core.outbox_relayed_return(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_returned integer := 0;
  v_channel text;
  v_id uuid;
  v_rows integer;
begin
  for v_channel, v_id, v_rows in
    with written as
      (update core.outbox o set status = 'pending', relayed_at = coalesce(o.relayed_at, clock_timestamp()),
         available_at = case o.status when 'relayed' then clock_timestamp() else o.available_at end
       from unnest(p_ids, p_occurred_ats) as k(id, occurred_at)
       where o.id = any (p_ids) and o.id = k.id and o.occurred_at = k.occurred_at and case
         when o.status = 'relayed' or o.status = 'pending' and o.relayed_at is null then o.deleted_at is null end
       returning o.channel, o.id, o.status)
    select w.channel, max(w.id::text), count(*) filter (where w.status = 'pending')
    from written w group by w.channel loop
    v_returned := v_returned + v_rows;
    perform pg_notify(v_channel, v_id::text);
  end loop;
  return v_returned;
exception
  when others then
    if cardinality(p_ids) <= 1 then return 0; end if;
    for v_rows in 1..cardinality(p_ids) loop
      v_returned := v_returned + core.outbox_relayed_return(p_ids[v_rows:v_rows], p_occurred_ats[v_rows:v_rows]);
    end loop;
    return v_returned;
end
$$;
create function core.outbox_relayed_return_lost(p_generation bigint, p_event_type text, p_before timestamptz,
  p_oldest uuid, p_limit integer) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
declare
  v_before constant timestamptz := case when p_oldest is null then p_before
    else (select min(o.relayed_at) - interval '10 seconds' from core.outbox o where o.id = p_oldest) end;
  v_ids uuid[];
  v_times timestamptz[];
begin
  select array_agg(r.id), array_agg(r.occurred_at) into v_ids, v_times from (
    select o.id, o.occurred_at from core.outbox o
    where o.status = 'relayed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      and (p_event_type is null or o.event_type = p_event_type) and o.relayed_at < v_before
    order by o.generation, o.event_type, o.relayed_at limit p_limit for update skip locked) r;
  if v_ids is null then return 0; end if;
  return core.outbox_relayed_return(v_ids, v_times);
end
$$;
create function core.outbox_relayed_since(p_generation bigint, p_event_types text[]) returns table (event_type text,
  first_at timestamptz, now timestamptz)
language sql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select t.event_type, f.relayed_at, clock_timestamp()
  from unnest(p_event_types) as t(event_type) cross join lateral
    (select o.relayed_at from core.outbox o where o.generation = p_generation and o.event_type = t.event_type
       and o.status = 'relayed' and o.deleted_at is null order by o.relayed_at limit 1) f
$$;
create function core.outbox_relayed_fail(p_id uuid, p_occurred_at timestamptz, p_handlers text[])
returns table (available_at timestamptz, attempts integer, handler_failures jsonb, handled text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
begin
  perform from core.outbox o where o.id = p_id and o.occurred_at = p_occurred_at for update;
  return query
    update core.outbox o set status = 'pending', relayed_at = coalesce(o.relayed_at, clock_timestamp()),
      available_at = case o.status when 'relayed' then clock_timestamp() else o.available_at end
    where o.id = p_id and o.occurred_at = p_occurred_at and o.status in ('relayed', 'pending') and o.deleted_at is null
    returning o.available_at, o.attempts, o.handler_failures,
      array(select e.handler_name from core.event_handled e
            where e.handler_name = any (p_handlers) and e.idempotency_key = o.idempotency_key);
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_relayed, core.outbox_relayed_take, core.outbox_relayed_deliver,
  core.outbox_relayed_fail, core.outbox_relayed_return, core.outbox_relayed_return_lost, core.outbox_relayed_since
  to spectral_worker;
grant execute on function core.relay_switch, core.outbox_relayed_return_lost to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.relay_switch, core.outbox_relayed, core.outbox_relayed_take, core.outbox_relayed_deliver,
  core.outbox_relayed_fail, core.outbox_relayed_return, core.outbox_relayed_return_lost, core.outbox_relayed_since;
drop table core.relay;
