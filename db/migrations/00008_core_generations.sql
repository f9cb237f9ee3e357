-- Deployment generations: register, drain, adopt, retire.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
create function core.generation_announce(p_generation bigint) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_status text;
begin
  if p_generation is null or p_generation not between 1 and 999999999999 then
    raise exception 'generation: must be a number from 1 to 999999999999'
      using errcode = 'SP019', column = 'generation', detail = 'received ' || coalesce(p_generation::text, 'null');
  end if;
  insert into core.deployments (generation) values (p_generation) on conflict (generation) do nothing;
  select d.status into v_status from core.deployments d where d.generation = p_generation;
  if v_status = 'retired' then
    raise exception 'generation: % is retired', p_generation using errcode = 'SP019', column = 'generation',
      detail = 'received ' || p_generation,
      hint = 'deploy under a new, higher generation (SPECTRAL_GENERATION)';
  end if;
  return v_status;
end
$$;
create function core.generation_register(p_generation bigint, p_registered_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_new constant boolean := not exists (select from core.deployments d where d.generation = p_generation);
  v_status constant text := core.generation_announce(p_generation);
begin
  update core.deployments d
  set status = 'live', draining_at = null, closed_at = null, closed_xid = null, closed_bound = null
  where d.generation = p_generation and d.status = 'draining';
  if found or v_new then
    perform core.operator_action('generation_register', p_registered_by, p_generation => p_generation,
      p_details => jsonb_build_object('was', case when not v_new then v_status end));
  end if;
  return core.generation_announce(p_generation);
end
$$;
create function core.generation_open(p_generation bigint, p_keep boolean default true) returns void
language plpgsql volatile as $$
declare
  v_status text;
begin
  if p_keep then perform from core.deployments d where d.generation = p_generation for share; end if;
  select case when d.status <> 'retired' and d.closed_at is not null then 'being retired' else d.status end
    into v_status from core.deployments d where d.generation = p_generation;
  if v_status is null or v_status in ('retired', 'being retired') then
    raise exception 'generation: % is %', coalesce(p_generation::text, 'null'),
        case when p_generation is null then 'none' else coalesce(v_status, 'not registered') end
      using errcode = 'SP019', column = 'generation',
            hint = coalesce('the highest live one is ' || (select max(d.generation) from core.deployments d
              where d.status = 'live'), 'none is live: ' || core.generation_hint());
  end if;
end
$$;
create function core.generation_drain(p_generation bigint, p_drained_by text default null,
  p_force boolean default false) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_live bigint[];
  v_status text;
begin
  select array_agg(l.generation) into v_live
  from (select d.generation from core.deployments d where d.status = 'live' order by d.generation for update) as l;
  if p_generation = any (v_live) then
    if cardinality(v_live) = 1 and p_force is not true then
      raise exception 'generation: % is the only live one', p_generation
        using errcode = 'SP041', column = 'generation',
              detail = 'without a live one, publishing from SQL that names no generation is refused (SP019)',
              hint = 'start the workers of the next generation first, or force it: --force, or p_force => true';
    end if;
    update core.deployments d set status = 'draining', draining_at = clock_timestamp()
      where d.generation = p_generation;
    perform core.operator_action('generation_drain', p_drained_by, p_generation => p_generation,
      p_details => jsonb_build_object('forced', case when cardinality(v_live) = 1 then true end));
    return 'draining';
  end if;
  select d.status into v_status from core.deployments d where d.generation = p_generation;
  if v_status = 'draining' then return v_status; end if;
  if v_status is null and exists (select from core.generation_backlog(p_generation)) then
    insert into core.deployments (generation, status, draining_at) values (p_generation, 'draining', clock_timestamp())
    on conflict do nothing;
    if not found then -- another session has registered it in that time
      return core.generation_drain(p_generation, p_drained_by, p_force);
    end if;
    perform core.operator_action('generation_drain', p_drained_by, p_generation => p_generation,
      p_details => jsonb_build_object('was', 'not registered'));
    return 'draining';
  end if;
  raise exception 'generation: % is %', coalesce(p_generation::text, 'null'), coalesce(v_status, 'not registered')
    using errcode = 'SP019', column = 'generation', hint = '`workers generation status` lists them';
end
$$;
create function core.generation_left(p_generation bigint) returns text
language sql volatile set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select case when w.due + w.scheduled + f.in_flight > 0 then
           format('%s due, %s scheduled%s, %s in flight%s', w.due, w.scheduled,
             coalesce(' until ' || to_char(w.last at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), ''), f.in_flight,
             (select format('; %s of them quarantined', count(*)) from core.quarantined_events q
              where q.generation = p_generation having count(*) > 0)) end
  from (select count(*) filter (where o.available_at <= statement_timestamp()) as due,
               count(*) filter (where o.available_at > statement_timestamp()) as scheduled,
               max(o.available_at) filter (where o.available_at > statement_timestamp()
                 and o.waiting_for is null) as last
        from core.outbox o where o.generation = p_generation and o.status = 'pending' and o.deleted_at is null) as w,
       (select count(*) as in_flight from
          (select from core.outbox o
           where o.generation = p_generation and o.status = 'in_flight' and o.deleted_at is null
           union all
           select from core.outbox o
           where o.generation = p_generation and o.status = 'relayed' and o.deleted_at is null) h) as f
$$;
create function core.transactions_below(p_below xid8) returns text language sql volatile as $$
  select count(*) || case count(*) when 1 then ' transaction (' else ' transactions (' end
         || string_agg(t.who, ', ' order by t.oldest desc, t.who) filter (where t.n <= 5) || case when count(*) > 5
           then ', ...)' else ')' end
  from (select max(age(l.transactionid)) as oldest, row_number() over (order by max(age(l.transactionid)) desc) as n,
               coalesce('pid ' || l.pid || coalesce(' of ' || a.usename,
                 '') || coalesce(' in ' || nullif(a.application_name, ''), '')
                 || coalesce(' at ' || a.datname, '')
                 || coalesce(' since ' || to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), ''),
                 'a prepared one') as who from pg_locks l left join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
          and age(l.transactionid) > age(p_below::xid)
        group by l.virtualtransaction, l.pid, a.usename, a.application_name, a.datname, a.xact_start) as t
  having count(*) > 0
$$;
create function core.generation_retire(p_generation bigint, p_retired_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set lock_timeout = '1s' as $$
declare
  v_old_id constant boolean := pg_current_xact_id_if_assigned() is not null; -- locking the row assigns one
  v_deployment core.deployments;
  v_left text;
  v_over boolean;
  v_bound xid8;
  v_paused text[];
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a generation cannot be retired at isolation level %', current_setting('transaction_isolation')
      using errcode = 'SP043', hint = 'begin isolation level read committed;';
  end if;
  begin
    select * into v_deployment from core.deployments d where d.generation = p_generation for update;
  exception when lock_not_available then
    return 'waiting: for a transaction that replays or adopts into the generation, '
      'publishes into it at REPEATABLE READ or SERIALIZABLE, or changes it';
  end;
  if v_deployment.generation is null then
    raise exception 'generation: % is not registered', coalesce(p_generation::text, 'null')
      using errcode = 'SP019', column = 'generation', hint = '`workers generation status` lists them';
  elsif v_deployment.status = 'retired' then
    return 'retired';
  elsif v_deployment.status <> 'draining' then
    raise exception 'generation: % is %', p_generation, v_deployment.status
      using errcode = 'SP040', column = 'generation',
            hint = case when exists (select from core.deployments d where d.status = 'live'
                and d.generation <> p_generation) then '' else 'start the workers of the next generation; then ' end
              || format('drain it first: `workers generation drain %1$s`, or: select core.generation_drain(%1$s)',
                p_generation);
  end if;
  if v_deployment.closed_at is null then
    v_left := core.generation_left(p_generation);
    if v_left is not null then return 'not empty: ' || v_left; end if;
    update core.deployments d set closed_at = clock_timestamp(), closed_xid = pg_current_xact_id(), closed_bound = null
    where d.generation = p_generation;
    perform core.operator_action('generation_close', p_retired_by, p_generation => p_generation);
    return 'closing: publishing into it is refused from now on; call again';
  elsif v_deployment.closed_xid = pg_current_xact_id() then
    return 'closing: commit, and call again';
  end if;
  v_bound := v_deployment.closed_bound;
  if v_bound is null or v_bound > pg_current_xact_id() then
    if v_old_id then return 'waiting: commit, and call again'; end if;
    v_bound := pg_current_xact_id();
    update core.deployments d set closed_bound = v_bound where d.generation = p_generation;
  end if;
  v_over := pg_snapshot_xmin(pg_current_snapshot()) >= v_bound;
  v_left := core.generation_left(p_generation);
  if v_left is not null then
    update core.deployments d set closed_at = null, closed_xid = null, closed_bound = null
      where d.generation = p_generation;
    perform core.operator_action('generation_reopen', p_retired_by, p_generation => p_generation,
      p_details => jsonb_build_object('left', v_left));
    return 'not empty: ' || v_left || ', which came while it was being closed: it takes events again';
  elsif not v_over then
    return format('waiting: for %s that may have published into it before it was closed %s s ago; unrelated ones '
      'look the same',
      coalesce(core.transactions_below(v_bound), 'transactions'),
        extract(epoch from clock_timestamp() - v_deployment.closed_at)::integer);
  end if;
  begin
    perform from core.event_types t where t.consumed_in ? p_generation::text
      order by t.event_type, t.event_version for update;
  exception when lock_not_available then
    return 'waiting: for a worker that registers its event types';
  end;
  update core.deployments d set status = 'retired', retired_at = clock_timestamp() where d.generation = p_generation;
  update core.event_types t set consumed_in = t.consumed_in - p_generation::text
    where t.consumed_in ? p_generation::text;
  with ended as (delete from core.paused_types p where p.generation = p_generation returning p.event_type)
  select array_agg(e.event_type order by e.event_type) into v_paused from ended e;
  delete from core.breakers b where b.generation = p_generation;
  perform core.operator_action('generation_retire', p_retired_by, p_generation => p_generation,
    p_details => jsonb_build_object('paused_types', to_jsonb(v_paused)));
  return 'retired';
end
$$;
create function core.generation_status(p_generation bigint default null) returns table (generation bigint, status text,
  registered_at timestamptz, draining_at timestamptz, closed_at timestamptz, retired_at timestamptz, due bigint,
  scheduled bigint, in_flight bigint, failed bigint, oldest_due timestamptz, next_scheduled timestamptz,
  last_scheduled timestamptz, workers bigint, publishing_default boolean, paused_types text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
  return query
    with pending as materialized (
      select o.generation, count(*) filter (where o.available_at <= statement_timestamp()) as due,
             count(*) filter (where o.available_at > statement_timestamp()) as scheduled,
             min(o.available_at) filter (where o.available_at <= statement_timestamp()) as oldest,
             min(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as next,
             max(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as last from core.outbox o
      where o.status = 'pending' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      group by o.generation),
    flying as materialized (
      select h.generation, count(*) as n from (
        select o.generation from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
        union all
        select o.generation from core.outbox o
        where o.status = 'relayed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)) h
      group by h.generation),
    failed as materialized (
      select o.generation, count(*) as n from core.outbox o
      where o.status = 'failed' and o.deleted_at is null and (p_generation is null or o.generation = p_generation)
      group by o.generation),
    known as (
      select d.generation from core.deployments d where p_generation is null or d.generation = p_generation
      union select generation from pending union select generation from flying union select generation from failed)
    select k.generation, case when d.status = 'draining' and d.closed_at is not null then 'closing'
        else coalesce(d.status, 'unknown') end, d.registered_at, d.draining_at, d.closed_at, d.retired_at,
      coalesce(p.due, 0), coalesce(p.scheduled, 0), coalesce(i.n, 0), coalesce(f.n, 0), p.oldest, p.next, p.last,
           (select count(*) from core.live_workers w where w.generation = k.generation),
           coalesce(d.status = 'live'
             and d.generation = (select max(l.generation) from core.deployments l where l.status = 'live'), false),
           array(select t.event_type from core.paused_types t where t.generation = k.generation order by t.event_type)
    from known k left join core.deployments d using (generation) left join pending p using (generation)
    left join flying i using (generation) left join failed f using (generation) order by k.generation;
end
$$;
create function core.generation_backlog(p_generation bigint,
  p_handled_in bigint default null) returns table (event_type text, due bigint, scheduled bigint, in_flight bigint,
  next_scheduled timestamptz, last_scheduled timestamptz, workers bigint, paused boolean)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
    with pending as materialized (
      select o.event_type, count(*) filter (where o.available_at <= statement_timestamp()) as due,
             count(*) filter (where o.available_at > statement_timestamp()) as scheduled,
             min(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as next,
             max(o.available_at) filter (where o.available_at > statement_timestamp()
               and o.waiting_for is null) as last from core.outbox o
      where o.generation = p_generation and o.status = 'pending' and o.deleted_at is null group by o.event_type),
    flying as materialized (
      select h.event_type, count(*) as n from (
        select o.event_type from core.outbox o
        where o.generation = p_generation and o.status = 'in_flight' and o.deleted_at is null
        union all
        select o.event_type from core.outbox o
        where o.generation = p_generation and o.status = 'relayed' and o.deleted_at is null) h
      group by h.event_type)
    select t.event_type, coalesce(p.due, 0), coalesce(p.scheduled, 0), coalesce(f.n, 0), p.next, p.last,
           (select count(*) from core.live_workers w
            where w.generation = coalesce(p_handled_in, p_generation) and w.handlers ? t.event_type),
           exists (select from core.paused_types s where s.generation = coalesce(p_handled_in, p_generation)
             and s.event_type = t.event_type)
    from (select p.event_type from pending p union select f.event_type from flying f) as t
    left join pending p using (event_type) left join flying f using (event_type) order by t.event_type;
end
$$;
create function core.generation_handlers(p_generation bigint) returns table (event_type text, handler text)
language sql stable security definer set search_path = pg_catalog, core, pg_temp as $$
  select distinct t.key, h.name
  from core.live_workers w, jsonb_each(w.handlers) as t, jsonb_array_elements_text(t.value) as h(name)
  where w.generation = p_generation order by 1, 2
$$;
create function core.generation_state(p_generation bigint) returns text
language sql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
  select coalesce(
    (select case
       when d.status = 'draining'
         and not exists (select from core.outbox o where o.generation = p_generation and o.status = 'pending'
           and o.deleted_at is null)
         and not exists (select from core.outbox o where o.generation = p_generation and o.status = 'in_flight'
           and o.deleted_at is null)
         and not exists (select from core.outbox o where o.generation = p_generation and o.status = 'relayed'
           and o.deleted_at is null) then 'drained'
       when d.status = 'draining' and d.closed_at is not null then 'closing'
       else d.status end from core.deployments d where d.generation = p_generation), 'unknown')
$$;
create function core.adoption_check(p_from bigint, p_to bigint, p_keep boolean) returns text
language plpgsql volatile as $$
declare
  v_status text;
begin
  if p_from = p_to then
    raise exception 'to: must be another generation than %', p_to using errcode = 'SP042', column = 'to',
      hint = '`workers generation status` lists them';
  end if;
  perform core.generation_open(p_to, p_keep);
  select d.status into v_status from core.deployments d where d.generation = p_from;
  if v_status is null and not exists
      (select from core.outbox o where o.generation = p_from and o.status = 'pending' and o.deleted_at is null) then
    raise exception 'from: generation % is not registered, and has no pending events', coalesce(p_from::text, 'null')
      using errcode = 'SP019', column = 'from', hint = '`workers generation status` lists them';
  end if;
  return coalesce(v_status, 'unknown');
end
$$;
create function core.outbox_adoptable(p_from bigint, p_to bigint,
  p_event_types text[] default null) returns table (event_type text, due bigint, scheduled bigint, in_flight bigint,
  workers bigint, paused boolean, target text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
begin
  perform core.adoption_check(p_from, p_to, false);
  return query
    with
    left_over as materialized (
      select o.event_type, o.target,
             count(*) filter (where o.status = 'relayed'
               or o.status = 'pending' and o.available_at <= statement_timestamp()) as due,
             count(*) filter (where o.status = 'pending' and o.available_at > statement_timestamp()) as scheduled,
             count(*) filter (where o.status = 'in_flight') as in_flight
      from (select p.event_type, p.target, p.status, p.available_at from core.outbox p
            where p.generation = p_from and p.status = 'pending' and p.deleted_at is null
            union all
            select f.event_type, f.target, f.status, f.available_at from core.outbox f
            where f.generation = p_from and f.status = 'in_flight' and f.deleted_at is null
            union all
            select r.event_type, r.target, r.status, r.available_at from core.outbox r
            where r.generation = p_from and r.status = 'relayed' and r.deleted_at is null) o
      where p_event_types is null or o.event_type = any (p_event_types) group by o.event_type, o.target)
    select l.event_type, l.due, l.scheduled, l.in_flight,
           (select count(*) from core.live_workers w where w.generation = p_to
              and exists (select from jsonb_array_elements_text(w.handlers -> l.event_type) as h(handler)
                where core.handles(h.handler, l.target))),
           exists (select from core.paused_types s where s.generation = p_to and s.event_type = l.event_type),
           l.target from left_over l order by l.event_type, l.target nulls first;
end
$$;
create function core.outbox_adopt(p_from bigint, p_to bigint, p_limit integer default 1000,
  p_adopted_by text default null, p_event_types text[] default null, p_before timestamptz default null) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_now constant timestamptz := clock_timestamp();
  v_suspects uuid[];
  v_type text;
  v_row record;
  v_ids uuid[] := '{}';
  v_occurred_ats timestamptz[] := '{}';
  v_channel text;
  v_id uuid;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'limit: % must be from 1 to 10000', coalesce(p_limit::text, 'null') using errcode = 'SP030',
      column = 'limit';
  end if;
  if core.adoption_check(p_from, p_to, true) = 'live' then
    raise warning 'from: generation % is live: its workers compete for its events, and more may come', p_from
      using hint = format('`workers generation drain %1$s`, or: select core.generation_drain(%1$s)', p_from);
  end if;
  perform core.workers_probe(gen_random_uuid(), 0); -- there may be no worker that does it
  perform core.outbox_reap(1000);
  perform core.outbox_relayed_return_lost(p_from, t.event_type, v_now, null, p_limit)
  from unnest(coalesce(p_event_types, array[null])) as t(event_type);
  v_suspects := coalesce(core.claim_suspects(null), '{}');
  for v_type in select p.event_type from core.pending_types() p
    where p.generation = p_from and (p_event_types is null or p.event_type = any (p_event_types)) loop
    for v_row in
      select o.id, o.occurred_at from core.outbox o
      where o.generation = p_from and o.event_type = v_type and o.status = 'pending' and o.deleted_at is null
        and (p_before is null or o.created_at < p_before) and o.id <> all (v_suspects)
        and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
      order by o.available_at limit p_limit - cardinality(v_ids) for update of o skip locked loop
      v_ids := v_ids || v_row.id;
      v_occurred_ats := v_occurred_ats || v_row.occurred_at;
    end loop;
    exit when cardinality(v_ids) >= p_limit;
  end loop;
  if v_ids = '{}' then return 0; end if;
  for v_channel, v_id in
    with moved as (
      update core.outbox o set generation = p_to,
          channel = 'outbox_gen_' || p_to || coalesce(substring(o.channel from '^outbox_gen_[0-9]+(_.+)$'), ''),
          waiting_for = null, available_at = greatest(case when o.waiting_for is null then o.available_at end,
            v_now + b.n * interval '1 microsecond')
      from unnest(v_ids, v_occurred_ats) with ordinality as b(id, occurred_at, n)
      where o.id = b.id and o.occurred_at = b.occurred_at returning o.channel, o.id)
    select distinct on (m.channel) m.channel, m.id from moved m order by m.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
  perform core.operator_action('adopt', p_adopted_by, v_ids, p_to,
    jsonb_build_object('from', p_from, 'event_types', to_jsonb(p_event_types)));
  return cardinality(v_ids);
end
$$;
-- +goose StatementEnd
grant execute on function core.generation_announce to spectral_worker;
grant execute on function core.generation_register, core.generation_drain, core.generation_retire,
  core.generation_status, core.generation_handlers, core.outbox_adoptable, core.outbox_adopt to spectral_operator;
grant execute on function core.generation_backlog, core.generation_state to spectral_operator, spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.generation_announce, core.generation_register, core.generation_open,
  core.generation_drain, core.generation_left, core.transactions_below, core.generation_retire,
  core.generation_status, core.generation_backlog, core.generation_handlers, core.generation_state,
  core.adoption_check, core.outbox_adoptable, core.outbox_adopt;
