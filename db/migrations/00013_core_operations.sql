-- Replays and discards of many events, which go on without the command that began them (docs/decisions/0023).
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.operations (
  id uuid not null default core.uuid_v7(),
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  created_by text not null,
  login text not null default session_user,
  reason text null,
  filter jsonb not null,
  plan text not null,
  as_of timestamptz not null,
  generation bigint null,
  force boolean not null default false,
  run text[] not null default '{}',
  skip text[] not null default '{}',
  rate double precision not null,
  batch integer not null,
  canary integer null,
  goes_on boolean not null default false,
  max_failed double precision not null,
  state text not null default 'running',
  state_at timestamptz not null default clock_timestamp(),
  state_by text not null,
  why text null,
  stepped_at timestamptz not null default clock_timestamp(),
  acted_at timestamptz null,
  checked integer not null default 0,
  total integer not null,
  acted integer not null default 0,
  delivered integer not null default 0,
  failed integer not null default 0,
  skipped integer not null default 0,
  delivered_before integer not null default 0,
  failed_before integer not null default 0,
  constraint operations_pk primary key (id),
  constraint operations_name_known check (name in ('replay', 'discard')),
  constraint operations_state_known check (state in ('running', 'paused', 'aborted', 'done')),
  constraint operations_bounds
    check (rate > 0 and batch between 1 and 1000 and canary > 0 and max_failed between 0 and 1)
);
comment on table core.operations is 'Replays and discards of many events: what was planned, and how far it is.';
comment on column core.operations.filter is 'what selected the events, for people';
comment on column core.operations.plan is 'names the plan that was confirmed: time, number of events, digests';
comment on column core.operations.as_of is 'events that failed or were delivered since are skipped';
comment on column core.operations.rate is 'events per second at most';
comment on column core.operations.canary is 'it waits when it has acted on so many; null: no canary, or over';
comment on column core.operations.checked is 'up to which row the last step has asked what became of it; 0: the end';
comment on column core.operations.acted_at is 'by the rate, when the events were acted on so far';
comment on column core.operations.goes_on is 'after a canary of which all succeeded';
comment on column core.operations.max_failed is 'it pauses when a larger share of the settled events has failed again';
comment on column core.operations.acted is 'events that were replayed or discarded';
comment on column core.operations.delivered_before is 'how many were when it was resumed: the share counts from there';
create index operations_stepped on core.operations (stepped_at) where state <> 'done';
grant select on core.operations to spectral_operator;

create table core.operation_rows (
  operation_id uuid not null,
  n integer not null,
  event_id uuid not null,
  occurred_at timestamptz not null,
  outcome text null,
  note text null,
  constraint operation_rows_pk primary key (operation_id, n)
);
comment on table core.operation_rows is 'The events of an operation, as its plan froze them, and what became of each.';
comment on column core.operation_rows.outcome is
  'null: not reached; acted: replayed, and not settled since; delivered, failed, discarded, skipped or gone';
create index operation_rows_waiting on core.operation_rows (operation_id, n) where outcome is null;
create index operation_rows_acted on core.operation_rows (operation_id, n) where outcome = 'acted';
grant select on core.operation_rows to spectral_operator;

-- +goose StatementBegin
create function core.operation_create(p_name text, p_created_by text, p_event_ids uuid[],
  p_occurred_ats timestamptz[], p_as_of timestamptz, p_filter jsonb, p_plan text, p_generation bigint default null,
  p_force boolean default false, p_run text[] default '{}', p_skip text[] default '{}', p_reason text default null,
  p_rate double precision default 1000, p_canary integer default null, p_goes_on boolean default false,
  p_max_failed double precision default 1, p_batch integer default 200) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_id uuid;
  v_count constant integer := cardinality(p_event_ids);
  v_fault text := case
    when p_name is null or p_name not in ('replay', 'discard') then 'name: must be replay or discard'
    when (p_name = 'replay') <> (p_generation is not null) then 'generation: a replay has one, a discard none'
    when v_count is null or v_count not between 1 and 1000000 then 'event_ids: must be 1 to 1,000,000'
    when cardinality(p_occurred_ats) is distinct from v_count or array_position(p_event_ids, null) is not null
      or array_position(p_occurred_ats, null) is not null then 'occurred_ats: must be one for each event'
    when p_as_of is null or p_as_of > clock_timestamp() then 'as_of: must be a time that has passed'
    when not coalesce(p_rate between 1e-6 and 1e9, false) then 'rate: must be 1e-6 to 1e9 events a second'
    when p_batch is null or p_batch not between 1 and 1000 then 'batch: must be 1 to 1000'
    when p_canary < 1 then 'canary: must be at least 1'
    when not coalesce(p_max_failed between 0 and 1, false) then 'max_failed: must be a share from 0 to 1'
    when btrim(p_reason) = '' or octet_length(p_reason) > 1024 then 'reason: must be 1 to 1024 bytes, not blank'
    when btrim(p_created_by) = '' or octet_length(p_created_by) > 256 then 'created_by: must be 1 to 256 bytes' end;
begin
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'SP030', column = split_part(v_fault, ':', 1);
  end if;
  if p_generation is not null then perform core.generation_open(p_generation, false); end if;
  insert into core.operations (name, created_by, reason, filter, plan, as_of, generation, force, run, skip, rate, batch,
    canary, goes_on, max_failed, state_by,
    total)
  values (p_name, coalesce(btrim(p_created_by), session_user), btrim(p_reason), coalesce(p_filter, '{}'),
    left(p_plan, 200), p_as_of, p_generation, coalesce(p_force, false), coalesce(p_run, '{}'), coalesce(p_skip, '{}'),
    p_rate, p_batch, p_canary, coalesce(p_goes_on, false), p_max_failed,
    coalesce(btrim(p_created_by), session_user), v_count)
  returning id into v_id;
  insert into core.operation_rows (operation_id, n, event_id, occurred_at)
  select v_id, k.n, k.id, k.at from unnest(p_event_ids, p_occurred_ats) with ordinality as k(id, at, n);
  perform core.operator_action('operation_create', p_created_by, '{}', p_generation,
    jsonb_build_object('operation', v_id, 'name', p_name, 'events', v_count, 'plan', p_plan));
  return v_id;
end
$$;
create function core.operation_step(p_operation uuid default null)
returns table (operation uuid, next_in double precision)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_o core.operations;
  v_limit integer;
  v_from timestamptz;
  v_waiting boolean;
  v_settled integer;
  v_seen record;
  v_ns integer[];
  v_ids uuid[];
  v_ats timestamptz[];
  v_done integer[] := '{}';
  v_size integer; -- the events from v_i to v_j are acted on at once
  v_i integer := 1;
  v_j integer;
  v_faults integer := 0; -- events that cannot be written
  v_skipped integer;
  v_count integer;
begin
  select o.* into v_o from core.operations o
  where o.state <> 'done' and (p_operation is null or o.id = p_operation)
    and (o.state = 'running' or (p_operation is not null or o.stepped_at < v_now - interval '10 seconds')
      and exists (select from core.operation_rows r where r.operation_id = o.id and r.outcome = 'acted'))
  order by o.stepped_at limit 1 for update skip locked;
  if not found then return; end if;
  operation := v_o.id;
  with acted as materialized
    (select r.n, r.event_id, r.occurred_at from core.operation_rows r
     where r.operation_id = v_o.id and r.outcome = 'acted' and r.n > v_o.checked order by r.n limit 1000),
  found as
    (select a.n, case when o.id is null then 'gone' else o.status end as outcome
     from acted a left join lateral (select k.id, k.status from core.outbox k
       where k.id = a.event_id and k.occurred_at = a.occurred_at offset 0) o on true),
  written as
    (update core.operation_rows r set outcome = f.outcome from found f
     where r.operation_id = v_o.id and r.n = f.n and f.outcome in ('delivered', 'failed', 'gone') returning r.outcome)
  select count(*) filter (where w.outcome = 'delivered') as delivered,
    count(*) filter (where w.outcome = 'failed') as failed, count(*) as count,
    (select case when count(*) = 1000 then max(a.n) else 0 end from acted a) as checked
  into v_seen from written w;
  v_o.checked := v_seen.checked;
  v_o.delivered := v_o.delivered + v_seen.delivered;
  v_o.failed := v_o.failed + v_seen.failed;
  v_waiting := exists (select from core.operation_rows r where r.operation_id = v_o.id and r.outcome = 'acted');
  v_settled := v_o.delivered - v_o.delivered_before + v_o.failed - v_o.failed_before;
  if v_o.state = 'running' and v_settled >= least(10, v_o.total, coalesce(v_o.canary, 10))
     and v_o.failed - v_o.failed_before > v_o.max_failed * v_settled then
    v_o.state := 'paused';
    v_o.why := format('%s of %s events have failed again', v_o.failed - v_o.failed_before, v_settled);
  elsif v_o.state = 'running' and v_o.acted >= v_o.canary and not v_waiting then
    if v_o.goes_on and v_o.failed = v_o.failed_before then
      v_o.canary := null;
    else
      v_o.state := 'paused';
      v_o.why := format('canary: %s delivered, %s failed again', v_o.delivered, v_o.failed);
    end if;
  end if;
  v_from := greatest(v_o.acted_at, v_now - make_interval(secs => greatest(1, 1 / v_o.rate)));
  if v_o.state = 'running' then
    v_limit := least(v_o.batch, v_o.canary - v_o.acted,
      floor(v_o.rate * extract(epoch from v_now - v_from) + 1e-6));
    select array_agg(r.n), array_agg(r.event_id), array_agg(r.occurred_at) into v_ns, v_ids, v_ats
    from (select r.* from core.operation_rows r where r.operation_id = v_o.id and r.outcome is null
          order by r.n limit greatest(v_limit, 0)) r;
  end if;
  v_size := cardinality(v_ns);
  while v_i <= cardinality(v_ns) loop
    v_j := least(v_i + v_size - 1, cardinality(v_ns));
    begin
      v_done := v_done || array(select k.n
        from (select d.event_id, d.occurred_at from core.outbox_replay_many(v_ids[v_i:v_j], v_o.generation,
                v_o.created_by, v_ats[v_i:v_j], v_o.as_of, v_o.force, v_o.run, v_o.skip) d where v_o.name = 'replay'
              union all
              select d.event_id, d.occurred_at from core.outbox_discard_many(v_ids[v_i:v_j], v_o.created_by, v_o.reason,
                v_ats[v_i:v_j], v_o.as_of) d where v_o.name = 'discard') d
        join unnest(v_ns[v_i:v_j], v_ids[v_i:v_j], v_ats[v_i:v_j]) as k(n, id, at)
          on k.id = d.event_id and k.at = d.occurred_at);
      v_i := v_j + 1;
    exception when others then
      if core.row_fault(sqlstate) and left(sqlstate, 2) <> 'SP' then
        if v_size = 1 then
          update core.operation_rows r set outcome = 'skipped', note = left(sqlstate || ': ' || sqlerrm, 200)
          where r.operation_id = v_o.id and r.n = v_ns[v_i];
          v_faults := v_faults + 1;
          v_i := v_i + 1;
        end if;
        v_size := 1;
      elsif left(sqlstate, 2) <> 'SP' then
        raise;
      end if;
      if left(sqlstate, 2) = 'SP' or v_faults > 1 and v_faults = cardinality(v_ns) then
        v_o.state := 'paused';
        v_o.why := left(sqlstate || ': ' || sqlerrm, 1000);
        exit;
      end if;
    end;
  end loop;
  with tried as
    (select r.n, case
       when r.n = any (v_done) then null
       when k.id is null then 'gone'
       when k.discarded_at is not null then 'discarded'
       when k.deleted_at is not null then 'expired'
       when k.status = 'failed' and k.claimed_at >= v_o.as_of then 'failed again'
       when k.status <> 'failed' and not (k.status = 'delivered' and v_o.force and k.delivered_at < v_o.as_of)
         then k.status
       when v_o.name = 'replay' and core.unconsumed(k.event_type, k.event_version, v_o.generation)
         then 'of no handler' end as note -- null: it is locked
     from core.operation_rows r
     left join lateral (select o.* from core.outbox o
       where o.id = r.event_id and o.occurred_at = r.occurred_at offset 0) k on true
     where r.operation_id = v_o.id and r.n = any (v_ns[:v_i - 1]) and r.outcome is null),
  written as
    (update core.operation_rows r set note = t.note,
       outcome = case when t.note is not null then 'skipped' when v_o.name = 'replay' then 'acted' else 'discarded' end
     from tried t where r.operation_id = v_o.id and r.n = t.n and (t.note is not null or t.n = any (v_done))
     returning r.outcome)
  select v_faults + count(*) filter (where w.outcome = 'skipped'), v_faults + count(*) into v_skipped, v_count
  from written w;
  v_o.acted := v_o.acted + cardinality(v_done);
  v_o.skipped := v_o.skipped + v_skipped;
  if v_o.state = 'running' and not exists (select from core.operation_rows r where r.operation_id = v_o.id
       and (r.outcome is null or r.outcome = 'acted')) then
    v_o.state := 'done';
  end if;
  update core.operations o set delivered = v_o.delivered, failed = v_o.failed, acted = v_o.acted, skipped = v_o.skipped,
    canary = v_o.canary, why = v_o.why, stepped_at = v_now,
    checked = v_o.checked, acted_at = case when v_count > 0
      then v_from + make_interval(secs => v_count / v_o.rate) else o.acted_at end, state = v_o.state,
    state_at = case when o.state = v_o.state then o.state_at else clock_timestamp() end,
    state_by = case when o.state = v_o.state then o.state_by else 'core.operation_step' end
  where o.id = v_o.id;
  next_in := case
    when v_o.state = 'running' and v_count = 0
      then case when v_seen.count > 0 then 0.1 else 1 end
    when v_o.state = 'running' then least(greatest(v_count / v_o.rate, 0.001), 1) end;
  return next;
end
$$;
create function core.operation_set(p_operation uuid, p_state text, p_by text default null,
  p_canary integer default null, p_max_failed double precision default null, p_rate double precision default null,
  p_run text[] default null, p_skip text[] default null, p_goes_on boolean default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_before text;
  v_fault constant text := case
    when p_state is null or p_state not in ('running', 'paused', 'aborted')
      then 'state: must be running, paused or aborted'
    when p_canary < 1 then 'canary: must be at least 1'
    when not p_max_failed between 0 and 1 then 'max_failed: must be a share from 0 to 1'
    when not p_rate between 1e-6 and 1e9 then 'rate: must be 1e-6 to 1e9 events a second' end;
begin
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'SP030', column = split_part(v_fault, ':', 1);
  end if;
  select o.state into v_before from core.operations o where o.id = p_operation for update;
  if not found then
    raise exception 'operation: % is not in core.operations', coalesce(p_operation::text, 'null')
      using errcode = 'SP031', column = 'operation', hint = '`workers operations list` lists them';
  end if;
  if v_before in ('done', 'aborted') then
    raise exception 'operation %: is %', p_operation, v_before using errcode = 'SP032', column = 'operation',
      hint = 'begin another one for what is left';
  end if;
  if v_before = p_state then
    raise exception 'operation %: is % already', p_operation, v_before
      using errcode = 'SP034', column = 'operation', hint = 'there is nothing to do';
  end if;
  if p_state = 'running' then
    perform core.operator_action('operation_resume', p_by, '{}', null, jsonb_build_object('operation', p_operation,
      'canary', p_canary, 'run', p_run, 'skip', p_skip));
  elsif p_state = 'paused' then
    perform core.operator_action('operation_pause', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  else
    perform core.operator_action('operation_abort', p_by, '{}', null, jsonb_build_object('operation', p_operation));
  end if;
  update core.operations o set state = p_state, state_at = clock_timestamp(), why = null,
    state_by = coalesce(btrim(p_by), session_user), stepped_at = clock_timestamp(),
    max_failed = coalesce(p_max_failed, o.max_failed), rate = coalesce(p_rate, o.rate),
    run = coalesce(p_run, o.run), skip = coalesce(p_skip, o.skip), goes_on = coalesce(p_goes_on, o.goes_on),
    canary = case when p_state <> 'running' then o.canary
      when p_canary is not null then o.acted + p_canary
      when o.acted < o.canary or exists (select from core.operation_rows r
        where r.operation_id = o.id and r.outcome = 'acted') then o.canary end,
    delivered_before = case when p_state = 'running' then o.delivered else o.delivered_before end,
    failed_before = case when p_state = 'running' then o.failed else o.failed_before end
  where o.id = p_operation;
  return v_before;
end
$$;
-- +goose StatementEnd
grant execute on function core.operation_step to spectral_worker, spectral_operator;
grant execute on function core.operation_create, core.operation_set to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.operation_rows', 'core.operations');
drop function core.operation_create, core.operation_step, core.operation_set;
drop table core.operation_rows, core.operations;
