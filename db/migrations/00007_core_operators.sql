-- What operators do with events. Each act is recorded in the same transaction.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- What operators did, when and to which events, whether by SQL, command or console: the functions that act write it
-- themselves, in the same transaction.
create table core.operator_actions (
  id uuid not null default core.uuid_v7(),
  acted_at timestamptz not null default clock_timestamp(),
  action text not null,
  acted_by text not null,
  login text not null default session_user,
  role text not null default coalesce(nullif(current_setting('role'), 'none'), session_user),
  tool text not null default current_setting('application_name'),
  event_ids uuid[] not null default '{}',
  generation bigint null,
  details jsonb not null default '{}',
  deleted_at timestamptz null,
  constraint operator_actions_pk primary key (id),
  constraint operator_actions_action_form check (action ~ '^[a-z][a-z_]{0,39}$'),
  constraint operator_actions_acted_by_size check (octet_length(acted_by) between 1 and 256),
  constraint operator_actions_details_object
    check (jsonb_typeof(details) = 'object' and pg_column_size(details) <= 65536)
);
comment on table core.operator_actions is 'What operators did: one row for each call of a function that acts.';
comment on column core.operator_actions.acted_by is 'who, as the caller said; the login where nothing was said';
comment on column core.operator_actions.login is 'the login that called, which cannot be said otherwise';
comment on column core.operator_actions.role is 'the role that was set, or else the login';
comment on column core.operator_actions.tool is 'the application_name of the connection';
comment on column core.operator_actions.event_ids is 'the events of core.outbox that were acted on';
comment on column core.operator_actions.generation is 'the generation that was acted on, or that events were moved to';
create index operator_actions_events on core.operator_actions using gin (event_ids);
grant select on core.operator_actions to spectral_operator;
-- What operators did is listed by time, a page at a cost that does not grow with what they did in a year.
create index operator_actions_acted_at on core.operator_actions (acted_at, id) where deleted_at is null;

-- +goose StatementBegin
create function core.pending_types() returns table (generation bigint, event_type text) language sql stable as $$
  with recursive pending(generation, event_type) as (
    (select o.generation, o.event_type from core.outbox o where o.status = 'pending' and o.deleted_at is null
     order by o.generation, o.event_type limit 1)
    union all
    select n.* from pending p cross join lateral
      (select o.generation, o.event_type from core.outbox o where o.status = 'pending' and o.deleted_at is null
         and (o.generation, o.event_type) > (p.generation, p.event_type)
       order by o.generation, o.event_type limit 1) n)
  select p.generation, p.event_type from pending p
$$;
create function core.relayed_types() returns table (generation bigint, event_type text) language sql stable as $$
  with recursive relayed(generation, event_type) as (
    (select o.generation, o.event_type from core.outbox o where o.status = 'relayed' and o.deleted_at is null
     order by o.generation, o.event_type limit 1)
    union all
    select n.* from relayed r cross join lateral
      (select o.generation, o.event_type from core.outbox o where o.status = 'relayed' and o.deleted_at is null
         and (o.generation, o.event_type) > (r.generation, r.event_type)
       order by o.generation, o.event_type limit 1) n)
  select r.generation, r.event_type from relayed r
$$;
create function core.operator_action(p_action text, p_acted_by text, p_event_ids uuid[] default '{}',
  p_generation bigint default null, p_details jsonb default '{}') returns void
language plpgsql volatile as $$
begin
  if p_acted_by is not null and (btrim(p_acted_by) = '' or octet_length(p_acted_by) > 256) then
    raise exception 'acted_by: must be 1 to 256 bytes, not blank; it has % bytes', octet_length(p_acted_by)
      using errcode = 'SP030', column = 'acted_by', hint = 'name yourself, or pass null to be noted as your login';
  end if;
  insert into core.operator_actions (action, acted_by, event_ids, generation, details)
  values (p_action, coalesce(btrim(p_acted_by), session_user), coalesce(p_event_ids, '{}'), p_generation,
    coalesce(jsonb_strip_nulls(p_details), '{}'));
end
$$;
create function core.failure_history_with(p_history jsonb, p_entry jsonb) returns jsonb
language plpgsql immutable as $$
declare
  v_all constant jsonb := p_history || jsonb_build_array(p_entry);
begin
  if jsonb_array_length(v_all) <= 100 and octet_length(v_all::text) <= 262144 then return v_all; end if;
  return (
    with entries as
      (select e.value, e.n, e.value ? 'omitted' as omits,
              case when jsonb_typeof(e.value -> 'omitted') = 'number' then (e.value ->> 'omitted')::numeric
                else 0 end as omitted,
              row_number() over dear as place, sum(octet_length(e.value::text) + 2) over dear as bytes
       from jsonb_array_elements(v_all) with ordinality as e(value, n)
       window dear as (partition by e.value ? 'omitted'
         order by e.n = jsonb_array_length(v_all) desc, e.value ? 'reaped_at', e.n desc)),
    marked as
      (select e.value, e.n, e.omitted, not e.omits and e.place <= 99
        and (e.place = 1 or e.bytes <= 262144 - 100) as kept, e.omits from entries e)
    select jsonb_build_array(jsonb_build_object('omitted',
      sum(j.omitted) + count(*) filter (where not j.kept and not j.omits)))
           || jsonb_agg(j.value order by j.n) filter (where j.kept) from marked j);
end
$$;
create function core.handles(p_handler text, p_target text) returns boolean language sql immutable as $$
  select p_target is null or split_part(p_handler, '.', 1) = p_target
$$;
create function core.tried(p_attempts integer, p_last_error text) returns boolean language sql immutable as $$
  select p_attempts > 0 or p_last_error is not null
$$;
create function core.operated_event(p_action text, p_event_id uuid, p_occurred_at timestamptz,
  p_force boolean default false) returns timestamptz
language plpgsql volatile as $$
declare
  v_row record;
  v_others integer := 0;
  v_days constant integer := (select p.tombstoned_grace_days
    from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*');
begin
  if p_event_id is null then
    raise exception 'event_id: is null' using errcode = 'SP030', column = 'event_id',
      hint = 'name an event of core.outbox by its id';
  end if;
  for v_row in
    select o.occurred_at, o.status, o.deleted_at, o.discarded_at, o.available_at, o.claimed_at, o.claimed_by,
      o.lease_seconds, o.waiting_for, o.failure_history -> -1 ->> 'corrected_as' as corrected_as
    from core.outbox o where o.id = p_event_id and (p_occurred_at is null or o.occurred_at = p_occurred_at) limit 2
  loop
    v_others := v_others + 1;
  end loop;
  if v_others = 0 then
    raise exception 'event_id: % is not in core.outbox%', p_event_id, concat(' with occurred_at ' || p_occurred_at)
      using errcode = 'SP031', column = 'event_id', hint = 'check the id; retention deletes events in the end';
  end if;
  if v_others > 1 then
    raise exception 'event_id: several events have the id %', p_event_id using errcode = 'SP035', column = 'event_id',
      hint = format('also name its occurred_at: select occurred_at, event_type, status from core.outbox '
              'where id = %L; then p_occurred_at => ...', p_event_id);
  end if;
  if v_row.deleted_at is not null and v_row.discarded_at is null then
    raise exception 'event %: has been past its retention since %', p_event_id, v_row.deleted_at
      using errcode = 'SP033', column = 'event_id', hint = 'publish it again if it is still wanted';
  end if;
  if p_action = 'undiscard' then
    if v_row.discarded_at is null then
      raise exception 'event %: is not discarded, it is %', p_event_id, v_row.status
        using errcode = 'SP034', column = 'event_id', hint = 'there is nothing to take back';
    end if;
    if v_row.corrected_as is not null then
      raise exception 'event %: was corrected, and is published as %', p_event_id, v_row.corrected_as
        using errcode = 'SP033', column = 'event_id', hint = 'nothing takes that back; act on the copy';
    end if;
    if v_row.deleted_at <= clock_timestamp() - make_interval(hours => v_days * 24) then
      raise exception 'event %: was discarded more than % days ago, at %', p_event_id, v_days, v_row.discarded_at
        using errcode = 'SP033', column = 'event_id', hint = 'publish it again if it is still wanted';
    end if;
    return v_row.occurred_at;
  end if;
  if v_row.discarded_at is not null then
    raise exception 'event %: was discarded at %', p_event_id, v_row.discarded_at using errcode = 'SP033',
      column = 'event_id', hint = format('first: `workers events undiscard %1$s`, or: '
        'select core.outbox_undiscard(%1$L, <who>)', p_event_id);
  end if;
  if v_row.status in ('pending', 'in_flight') and exists
    (select from core.quarantined_events q where q.id = p_event_id and q.occurred_at = v_row.occurred_at) then
    if p_action = 'retry_now' then return v_row.occurred_at; end if;
    raise exception 'event %: is quarantined: its row could not be read or written', p_event_id
      using errcode = 'SP032', column = 'event_id', hint = format('remove what rejects it; then `workers events '
        'retry-now %1$s`, or: select core.outbox_retry_now(%1$L)', p_event_id);
  end if;
  if p_action = 'retry_now' then
    if v_row.status <> 'pending' then
      raise exception 'event %: is %, not pending', p_event_id, v_row.status
        using errcode = 'SP032', column = 'event_id',
              hint = case v_row.status
                when 'failed' then format('`workers events replay %1$s --to <generation>`, or: '
                  'select core.outbox_replay(%1$L, <generation>, <who>)', p_event_id)
                when 'in_flight' then 'a worker handles it; if that worker dies, the event is pending again when the '
                  'lease runs out'
                when 'relayed' then 'a broker has it for its handlers; `workers relay back` gives all such events back'
                else 'nothing is left to do' end;
    end if;
    if v_row.waiting_for is not null then
      raise exception 'event %: waits for the breaker of % to close', p_event_id, v_row.waiting_for
        using errcode = 'SP032', column = 'event_id', hint = 'it is due when that closes; `workers handlers list` '
          'says why it is open, and `workers handlers close` closes it';
    end if;
    if v_row.available_at <= clock_timestamp() then
      raise exception 'event %: is due already, since %', p_event_id, v_row.available_at
        using errcode = 'SP034', column = 'event_id',
          hint = 'see whether a live worker handles its type in its generation, and whether that is paused';
    end if;
    return v_row.occurred_at;
  end if;
  if v_row.status <> 'failed' and not (p_action = 'replay' and v_row.status = 'delivered' and coalesce(p_force, false))
    then
    raise exception 'event %: is %, not failed', p_event_id, v_row.status
      using errcode = 'SP032', column = 'event_id',
            hint = case
              when v_row.waiting_for is not null
                then format('it waits for the breaker of %s: see `workers handlers list`', v_row.waiting_for)
              when v_row.status = 'pending' and v_row.available_at > clock_timestamp()
                then format('it is due at %1$s; sooner: `workers events retry-now %2$s`, or: '
                  'select core.outbox_retry_now(%2$L)', v_row.available_at, p_event_id)
              when v_row.status = 'pending' then 'it is due, or a worker handles it'
              when v_row.status = 'in_flight'
                then format('worker %s handles it; if that worker dies, it is pending again at %s',
                  coalesce(v_row.claimed_by, 'unknown'), v_row.claimed_at + make_interval(secs => v_row.lease_seconds))
              when v_row.status = 'relayed'
                then 'a broker has it for its handlers; `workers relay back` gives all such events back'
              when p_action = 'replay' then '--force, or p_force => true, replays it for other handlers'
              else 'nothing is left to do' end;
  end if;
  return v_row.occurred_at;
end
$$;
create function core.operated_ids(p_event_ids uuid[], p_occurred_ats timestamptz[]) returns void
language plpgsql immutable as $$
begin
  if p_event_ids is null or cardinality(p_event_ids) > 1000 then
    raise exception 'event_ids: must be an array of at most 1000 ids, not %', coalesce(cardinality(p_event_ids)::text,
      'null') using errcode = 'SP030', column = 'event_ids',
      hint = 'call it several times, or use the command: it goes in batches';
  end if;
  if p_occurred_ats is not null and cardinality(p_occurred_ats) <> cardinality(p_event_ids) then
    raise exception 'occurred_ats: % for % ids', cardinality(p_occurred_ats), cardinality(p_event_ids)
      using errcode = 'SP030', column = 'occurred_ats',
        hint = 'pass one occurred_at for each id, or null where no two events share one';
  end if;
end
$$;
create function core.operated_rows(p_action text, p_event_ids uuid[], p_occurred_ats timestamptz[],
  p_settled_before timestamptz default null, p_force boolean default false,
  p_generation bigint default null) returns table (id uuid, occurred_at timestamptz)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  return query
    select o.id, o.occurred_at
    from (select distinct g.id, g.occurred_at
      from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at) order by 1, 2) g
    cross join lateral
      (select o.id, o.occurred_at from core.outbox o where o.id = g.id
         and (o.occurred_at = g.occurred_at or g.occurred_at is null
              and not exists (select from core.outbox t where t.id = o.id and t.occurred_at <> o.occurred_at))
         and case p_action
               when 'replay' then (o.status = 'failed' or o.status = 'delivered' and p_force) and o.deleted_at is null
                 and coalesce(case when o.status = 'failed' then o.claimed_at
                   else o.delivered_at end < p_settled_before, true)
                 and not core.unconsumed(o.event_type, o.event_version, p_generation)
               when 'discard' then o.status = 'failed' and o.deleted_at is null
                 and coalesce(o.claimed_at < p_settled_before, true)
               when 'undiscard' then o.discarded_at is not null
                 and not coalesce(o.failure_history -> -1 ? 'corrected_as', false)
                 and o.deleted_at > clock_timestamp() - (select make_interval(hours => p.tombstoned_grace_days * 24)
                 from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*')
               when 'retry_now' then o.deleted_at is null
                 and (o.status = 'pending' and o.available_at > clock_timestamp() and o.waiting_for is null
                 or o.status in ('pending', 'in_flight')
                   and exists (select from core.quarantined_events q
                     where q.id = o.id and q.occurred_at = o.occurred_at)) end for update of o skip locked) o;
end
$$;
create function core.outbox_replay(p_event_id uuid, p_new_generation bigint, p_replayed_by text default null,
  p_occurred_at timestamptz default null, p_force boolean default false, p_run text[] default '{}',
  p_skip text[] default '{}') returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
  v_cycle integer;
begin
  v_occurred_at := core.operated_event('replay', p_event_id, p_occurred_at, p_force);
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('replay', p_event_id, v_occurred_at, p_force);
  select r.cycle into v_cycle
  from core.outbox_replay_many(array[p_event_id], p_new_generation, p_replayed_by, array[v_occurred_at],
    p_force => p_force, p_run => p_run, p_skip => p_skip) r;
  if v_cycle is null then
    raise exception 'event %: no handler in generation % consumes its type', p_event_id, p_new_generation
      using errcode = 'SP036', column = 'event_id', hint = 'replay it into a generation that handles it, or discard it';
  end if;
  return v_cycle;
end
$$;
create function core.outbox_replay_many(p_event_ids uuid[], p_new_generation bigint, p_replayed_by text default null,
  p_occurred_ats timestamptz[] default null, p_settled_before timestamptz default null,
  p_force boolean default false, p_run text[] default '{}', p_skip text[] default '{}')
returns table (event_id uuid, occurred_at timestamptz, cycle integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_ids uuid[];
  v_ats timestamptz[];
  v_channels text[];
  v_cycles integer[];
  v_ask text;
begin
  perform core.generation_open(p_new_generation);
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('replay', p_event_ids, p_occurred_ats, p_settled_before, p_force, p_new_generation) r;
  select string_agg(distinct b.handler_name, ', ') into v_ask
  from core.begun_handlers(v_ids, v_ats, p_new_generation) b
  where b.on_replay = 'ask' and b.handler_name <> all (p_run || p_skip);
  if v_ask is not null then
    raise exception 'handler %: had begun, and acts outside its transaction: say whether it runs again', v_ask
      using errcode = 'SP037', column = 'handler', hint = 'pass --run or --skip with its name (p_run, p_skip)';
  end if;
  insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class,
    outcome, skipped_by)
  select b.handler_name, o.idempotency_key, o.id, o.event_type, o.workspace_id, o.content_class, 'skipped',
    coalesce(btrim(p_replayed_by), session_user)
  from core.begun_handlers(v_ids, v_ats, p_new_generation) b
  cross join lateral (select o.* from core.outbox o where o.id = b.id and o.occurred_at = b.occurred_at offset 0) o
  where b.handler_name = any (p_skip) or b.on_replay = 'skip' and b.handler_name <> all (p_run)
  order by 1, 2
  on conflict do nothing;
  with written as
    (update core.outbox o set status = 'pending', generation = p_new_generation, available_at = clock_timestamp(),
         channel = 'outbox_gen_' || p_new_generation || coalesce(case
           when o.channel ~ '^outbox_gen_[0-9]+$' then ''
           when o.channel ~ '^outbox_gen_[0-9]+_[a-z][a-z0-9_]{0,29}$'
             then substring(o.channel from '^outbox_gen_[0-9]+(_.*)$')
           else (select '_' || t.class from core.event_types t where t.event_type = o.event_type
             and t.event_version = o.event_version)
         end, ''),
         attempts = 0, last_error = null, first_failed_at = null, claimed_at = null, claim_token = null,
         claimed_by = null, lease_handler = null, delivered_at = null, waiting_for = null,
         handler_failures = '{}', crashes = 0,
         failure_history = core.failure_history_with(o.failure_history, jsonb_build_object(
           'cycle', core.prior_replays(o.failure_history) + 1, 'attempts', o.attempts, 'last_error', o.last_error,
           'first_failed_at', o.first_failed_at, 'failed_at', case when o.status = 'failed' then o.claimed_at end,
           'replayed_at', clock_timestamp(), 'replayed_by', coalesce(btrim(p_replayed_by), session_user))
           || case when o.status = 'delivered' then jsonb_build_object('delivered_at', o.delivered_at) else '{}' end)
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at, o.channel, (o.failure_history #>> '{-1,cycle}')::integer as cycle)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}'),
    coalesce(array_agg(w.channel), '{}'), coalesce(array_agg(w.cycle), '{}')
  into v_ids, v_ats, v_channels, v_cycles from written w;
  return query select k.id, k.occurred_at, k.cycle from unnest(v_ids, v_ats, v_cycles) as k(id, occurred_at, cycle);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('replay', p_replayed_by, v_ids, p_new_generation,
      jsonb_build_object('asked', cardinality(p_event_ids), 'forced', nullif(coalesce(p_force, false), false),
        'run', nullif(to_jsonb(p_run), '[]'), 'skip', nullif(to_jsonb(p_skip), '[]')));
  end if;
  perform pg_notify(n.channel, n.id::text)
  from (select distinct on (u.channel) u.channel, u.id from unnest(v_channels, v_ids) as u(channel, id)
    order by u.channel) n;
end
$$;
create function core.outbox_replay_preview(p_event_id uuid, p_new_generation bigint,
  p_occurred_at timestamptz default null, p_force boolean default false) returns table (handler text, would_run boolean,
  handled_at timestamptz, note text, begun boolean, effect text, on_replay text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at constant timestamptz := core.operated_event('replay', p_event_id, p_occurred_at, p_force);
begin
  perform core.generation_open(p_new_generation, false);
  if exists (select from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at
             and core.unconsumed(o.event_type, o.event_version, p_new_generation)) then
    raise exception 'event %: no handler in generation % consumes its type', p_event_id, p_new_generation
      using errcode = 'SP036', column = 'event_id', hint = 'replay it into a generation that handles it, or discard it';
  end if;
  return query
    select p.handler, p.would_run, p.handled_at, p.note, p.begun, p.effect, p.on_replay
    from core.outbox_replay_preview_many(array[p_event_id], p_new_generation, array[v_occurred_at]) p;
end
$$;
create function core.outbox_replay_preview_many(p_event_ids uuid[], p_new_generation bigint,
  p_occurred_ats timestamptz[] default null) returns table (event_id uuid, occurred_at timestamptz, event_type text,
  handler text, would_run boolean, handled_at timestamptz, note text, begun boolean, effect text, on_replay text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_types text[];
  v_handlers text[];
  v_no_handler text;
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  perform core.generation_open(p_new_generation, false);
  select array_agg(h.event_type), array_agg(h.handler) into v_types, v_handlers
    from core.generation_handlers(p_new_generation) h;
  v_no_handler := case when v_types is null
    then format('no worker of generation %s is live: what will run is not known', p_new_generation) end;
  return query
    with given as materialized
      (select distinct g.* from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at)),
    rows as materialized
      (select o.id, o.occurred_at, o.event_type, o.event_version, o.target, o.idempotency_key
       from given g cross join lateral
         (select o.* from core.outbox o where o.id = g.id
           and (g.occurred_at is null or o.occurred_at = g.occurred_at) offset 0) o)
    select r.id, r.occurred_at, r.event_type, h.handler, h.handler is not null and d.handled_at is null
      and c.unconsumed is null, d.handled_at,
           nullif(concat_ws('; ',
             case when h.handler is null
               then coalesce(v_no_handler, format('no live worker of generation %s handles %s%s', p_new_generation,
                 r.event_type, coalesce(' for target ' || r.target, ''))) end,
             c.unconsumed,
             (select format('paused in generation %s since %s by %s: it will wait', p.generation,
               to_char(p.paused_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), p.paused_by)
              from core.paused_types p where p.generation = p_new_generation and p.event_type = r.event_type)), ''),
           b.handler_name is not null, k.effect, coalesce(k.on_replay, 'allow')
    from rows r
    left join lateral (select l.handler from unnest(v_types, v_handlers) as l(event_type, handler)
                       where l.event_type = r.event_type and core.handles(l.handler, r.target)) h on true
    left join lateral (select e.handled_at from core.event_handled e
                       where e.handler_name = h.handler and e.idempotency_key = r.idempotency_key offset 0) d on true
    left join lateral (select format('no handler in generation %s consumes its type: it will not be replayed',
      p_new_generation) where core.unconsumed(r.event_type, r.event_version, p_new_generation)) c(unconsumed) on true
    left join core.handlers k on k.generation = p_new_generation and k.event_type = r.event_type
      and k.handler_name = h.handler
    left join core.begun_handlers(array(select w.id from rows w order by w.id, w.occurred_at),
        array(select w.occurred_at from rows w order by w.id, w.occurred_at), p_new_generation) b
      on b.id = r.id and b.occurred_at = r.occurred_at and b.handler_name = h.handler
    order by r.id, r.occurred_at, h.handler;
end
$$;
create function core.outbox_discard(p_event_id uuid, p_discarded_by text, p_reason text default null,
  p_occurred_at timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
begin
  v_occurred_at := core.operated_event('discard', p_event_id, p_occurred_at);
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('discard', p_event_id, v_occurred_at);
  perform core.outbox_discard_many(array[p_event_id], p_discarded_by, p_reason, array[v_occurred_at]);
end
$$;
create function core.outbox_discard_many(p_event_ids uuid[], p_discarded_by text, p_reason text default null,
  p_occurred_ats timestamptz[] default null, p_failed_before timestamptz default null) returns table (event_id uuid,
  occurred_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_ids uuid[];
  v_ats timestamptz[];
  v_now constant timestamptz := clock_timestamp();
begin
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('discard', p_event_ids, p_occurred_ats, p_failed_before) r;
  with written as
    (update core.outbox o set deleted_at = v_now, discarded_at = v_now, undiscarded_at = null,
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('discarded_at', v_now, 'discarded_by', coalesce(btrim(p_discarded_by), session_user),
             'reason', btrim(p_reason)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}') into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('discard', p_discarded_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids), 'reason', btrim(p_reason)));
  end if;
end
$$;
create function core.outbox_undiscard(p_event_id uuid, p_undiscarded_by text,
  p_occurred_at timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
begin
  v_occurred_at := core.operated_event('undiscard', p_event_id, p_occurred_at);
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('undiscard', p_event_id, v_occurred_at);
  perform from core.outbox_undiscard_many(array[p_event_id], p_undiscarded_by, array[v_occurred_at]);
  if not found then
    raise exception 'event %: was discarded too long ago', p_event_id
      using errcode = 'SP033', column = 'event_id', hint = 'publish it again if it is still wanted';
  end if;
end
$$;
create function core.outbox_undiscard_many(p_event_ids uuid[], p_undiscarded_by text,
  p_occurred_ats timestamptz[] default null) returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_ids uuid[];
  v_ats timestamptz[];
begin
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('undiscard', p_event_ids, p_occurred_ats) r;
  with written as
    (update core.outbox o set deleted_at = null, discarded_at = null, undiscarded_at = clock_timestamp(),
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('undiscarded_at', clock_timestamp(), 'undiscarded_by',
             coalesce(btrim(p_undiscarded_by), session_user)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}') into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('undiscard', p_undiscarded_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
end
$$;
create function core.outbox_retry_now(p_event_id uuid, p_retried_by text default null,
  p_occurred_at timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at constant timestamptz := core.operated_event('retry_now', p_event_id, p_occurred_at);
begin
  if not exists (select from core.outbox_retry_now_many(array[p_event_id], p_retried_by, array[v_occurred_at])) then
    perform core.operated_event('retry_now', p_event_id, v_occurred_at); -- its status has changed in that time
    raise exception 'event %: another session is changing it', p_event_id
      using errcode = 'SP032', column = 'event_id', hint = 'repeat the call in a moment';
  end if;
end
$$;
create function core.outbox_retry_now_many(p_event_ids uuid[], p_retried_by text default null,
  p_occurred_ats timestamptz[] default null) returns table (event_id uuid, occurred_at timestamptz, tried boolean)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_ids uuid[];
  v_ats timestamptz[];
  v_channels text[];
  v_tried boolean[];
begin
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('retry_now', p_event_ids, p_occurred_ats) r;
  with freed as
    (delete from core.quarantined_events q using unnest(v_ids, v_ats) as k(id, occurred_at)
     where q.id = k.id and q.occurred_at = k.occurred_at returning q.id, q.occurred_at),
  restamped as
    (update core.outbox o set available_at = clock_timestamp(), waiting_for = null
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
       and not exists (select from freed f where f.id = o.id and f.occurred_at = o.occurred_at)
     returning o.id, o.occurred_at, o.channel, core.tried(o.attempts, o.last_error) as tried),
  written as
    (select * from restamped
     union all
     select o.id, o.occurred_at, o.channel, true from freed f join core.outbox o using (id, occurred_at))
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}'),
    coalesce(array_agg(w.channel), '{}'), coalesce(array_agg(w.tried), '{}')
  into v_ids, v_ats, v_channels, v_tried from written w;
  return query select k.id, k.occurred_at, k.tried from unnest(v_ids, v_ats, v_tried) as k(id, occurred_at, tried);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('retry_now', p_retried_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
  perform pg_notify(n.channel, n.id::text)
  from (select distinct on (u.channel) u.channel, u.id from unnest(v_channels, v_ids) as u(channel, id)
    order by u.channel) n;
end
$$;
create function core.event_type_pause(p_event_type text, p_generation bigint, p_paused_by text default null,
  p_reason text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_paused core.paused_types;
begin
  if p_event_type is null or not exists (select from core.event_types t where t.event_type = p_event_type) then
    raise exception 'event_type: % is not registered', coalesce(quote_literal(left(p_event_type, 200)), 'null')
      using errcode = 'SP030', column = 'event_type', hint = 'select distinct event_type from core.event_types';
  end if;
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  perform core.generation_open(p_generation);
  perform core.operator_action('pause', p_paused_by, '{}', p_generation,
    jsonb_build_object('event_type', p_event_type, 'reason', btrim(p_reason)));
  insert into core.paused_types (event_type, generation, paused_by, reason)
  values (p_event_type, p_generation, coalesce(btrim(p_paused_by), session_user), btrim(p_reason))
  on conflict (generation, event_type) do nothing;
  if not found then
    select * into v_paused from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type;
    raise exception 'event_type: % is paused already in generation %, since % by %', p_event_type, p_generation,
      v_paused.paused_at, v_paused.paused_by using errcode = 'SP034', column = 'event_type',
      hint = format('`workers events resume %1$s --generation %2$s`, or: select core.event_type_resume(%1$L, %2$s)',
        p_event_type, p_generation);
  end if;
end
$$;
create function core.event_type_resume(p_event_type text, p_generation bigint,
  p_resumed_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
  v_id text;
begin
  delete from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type;
  if not found then
    raise exception 'event_type: % is not paused in generation %',
      coalesce(quote_literal(left(p_event_type, 200)), 'null'), coalesce(p_generation::text, 'null')
      using errcode = 'SP034', column = 'event_type', hint = '`workers events pause --list` shows what is paused';
  end if;
  perform core.operator_action('resume', p_resumed_by, '{}', p_generation,
    jsonb_build_object('event_type', p_event_type));
  v_id := (select o.id::text from core.outbox o
           where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending'
             and o.deleted_at is null order by o.available_at limit 1);
  perform pg_notify(c.channel, coalesce(v_id, '')) from
    (select 'outbox_gen_' || p_generation || coalesce('_' || t.class, '') as channel from core.event_types t
     where t.event_type = p_event_type
     union
     select o.channel from (select o.channel from core.outbox o
       where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending'
         and o.deleted_at is null order by o.available_at limit 1000) o) c;
end
$$;
create function core.outbox_locked_by(p_id uuid, p_occurred_at timestamptz) returns integer[]
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_free boolean := true;
  v_xmax xid;
  v_pids integer[];
begin
  begin
    perform from core.outbox o where o.id = p_id and o.occurred_at = p_occurred_at for update skip locked;
    v_free := found;
    raise exception using errcode = 'SPA00', message = 'gives the lock back';
  exception when sqlstate 'SPA00' then
    null;
  end;
  select o.xmax into v_xmax from core.outbox o where o.id = p_id and o.occurred_at = p_occurred_at;
  if v_free or not found then
    return null;
  end if;
  v_pids := array(select distinct l.pid from pg_locks l
    where l.locktype = 'transactionid' and l.granted and l.transactionid = v_xmax and l.pid is not null order by 1);
  if v_pids = '{}' then -- several sessions share the row
    v_pids := array(select distinct l.pid from pg_get_multixact_members(v_xmax) m
      join pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = m.xid
      where l.pid is not null order by 1);
  end if;
  return v_pids;
exception when invalid_parameter_value or internal_error then -- it was no number of such a group
  return '{}';
end
$$;
-- +goose StatementEnd
grant execute on function core.pending_types, core.relayed_types, core.tried,
  core.outbox_replay, core.outbox_replay_many,
  core.outbox_replay_preview, core.outbox_replay_preview_many, core.outbox_discard, core.outbox_discard_many,
  core.outbox_undiscard, core.outbox_undiscard_many, core.outbox_retry_now, core.outbox_retry_now_many,
  core.event_type_pause, core.event_type_resume, core.outbox_locked_by to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.operator_actions');
drop function core.pending_types, core.relayed_types, core.operator_action,
  core.failure_history_with, core.handles, core.tried,
  core.operated_event, core.operated_ids, core.operated_rows, core.outbox_replay, core.outbox_replay_many,
  core.outbox_replay_preview, core.outbox_replay_preview_many, core.outbox_discard, core.outbox_discard_many,
  core.outbox_undiscard, core.outbox_undiscard_many, core.outbox_retry_now, core.outbox_retry_now_many,
  core.event_type_pause, core.event_type_resume, core.outbox_locked_by;
drop table core.operator_actions;
