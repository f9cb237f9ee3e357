-- Worker processes and their claim journal: who lives, and what dead workers held.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- Worker processes, and whether they live.
create table core.workers (
  worker_id uuid not null,
  session_id uuid not null,
  generation bigint not null,
  name text not null,
  handlers jsonb not null,
  registered_at timestamptz not null default clock_timestamp(),
  gone_at timestamptz null,
  charged boolean not null default false,
  stopping boolean not null default false,
  constraint workers_pk primary key (worker_id),
  constraint workers_generation_range check (generation between 1 and 999999999999),
  constraint workers_name_size check (octet_length(name) between 1 and 256),
  constraint workers_handlers_object check (jsonb_typeof(handlers) = 'object')
) with (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
comment on table core.workers is 'Worker processes. A live one holds the session lock core.worker_lock(session_id).';
comment on column core.workers.name is 'host and process, for people';
comment on column core.workers.handlers is 'event type to sorted handler names';
comment on column core.workers.gone_at is 'when it was first found without its session lock, null while it holds it';
comment on column core.workers.charged is 'its crash is charged to one row, so not to the others that it held';
comment on column core.workers.stopping is 'it was told to stop: what it holds is charged to no row';
grant select on core.workers to spectral_operator;

-- The rows that each worker holds, committed before their handlers run: what a dead worker held may have ended it
-- (docs/decisions/0008).
create table core.claim_journal (
  worker_id uuid not null,
  event_type text not null,
  runner integer not null,
  ids uuid[] not null,
  claimed_at timestamptz not null default clock_timestamp(),
  handlers text[] not null default '{}',
  constraint claim_journal_pk primary key (worker_id, event_type, runner)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
alter table core.claim_journal alter column ids set storage external; -- ids hardly compress, and trying takes long
comment on table core.claim_journal is 'The latest claim of each runner of each worker.';
comment on column core.claim_journal.handlers is 'that act outside their transaction and have begun (core.handlers)';
comment on column core.claim_journal.ids is 'rows of that claim; once it ends they are settled or due after claimed_at';
grant select on core.claim_journal to spectral_operator;

-- +goose StatementBegin
create function core.worker_lock(p_session uuid) returns bigint language sql immutable as $$
  select hashtextextended(p_session::text, 4871030926153309871)
$$;
create function core.worker_gone(p_session uuid) returns boolean language sql volatile as $$
  select case when pg_try_advisory_lock_shared(core.worker_lock(p_session))
              then pg_advisory_unlock_shared(core.worker_lock(p_session)) else false end
$$;
create function core.worker_difference(p_worker uuid, p_generation bigint, p_handlers jsonb) returns text
language sql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
  select format('worker %s is live and handles %s by %s, not by %s', w.name, t.event_type, w.handlers -> t.event_type,
    t.names)
  from core.workers w, jsonb_each(p_handlers) as t(event_type, names)
  where w.generation = p_generation and w.worker_id <> p_worker
    and w.handlers ? t.event_type and w.handlers -> t.event_type <> t.names and not core.worker_gone(w.session_id)
  order by w.name, t.event_type limit 1
$$;
create function core.worker_register(p_worker uuid, p_generation bigint, p_name text, p_handlers jsonb,
  p_effects jsonb default '{}') returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_difference text;
  v_session constant uuid := gen_random_uuid();
begin
  lock table core.workers in share update exclusive mode; -- not against those that write it otherwise
  v_difference := core.worker_difference(p_worker, p_generation, p_handlers);
  if v_difference is not null then return v_difference; end if;
  perform pg_advisory_lock(core.worker_lock(v_session));
  insert into core.workers (worker_id, session_id, generation, name, handlers)
  values (p_worker, v_session, p_generation, p_name, p_handlers)
  on conflict (worker_id) do update set session_id = v_session, gone_at = null, charged = false;
  insert into core.handlers as k (generation, handler_name, event_type, effect, on_replay)
  select p_generation, n.name, t.event_type, p_effects #>> array[n.name, 'effect'],
    coalesce(p_effects #>> array[n.name, 'on_replay'], 'allow')
  from jsonb_each(p_handlers) as t(event_type, names), jsonb_array_elements_text(t.names) as n(name)
  on conflict (generation, event_type, handler_name) do update
  set effect = excluded.effect, on_replay = excluded.on_replay
  where (k.effect, k.on_replay) is distinct from (excluded.effect, excluded.on_replay);
  return null;
end
$$;
create function core.worker_stopping(p_worker uuid, p_generation bigint, p_name text) returns void
language sql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
  insert into core.workers (worker_id, session_id, generation, name, handlers, stopping)
  values (p_worker, gen_random_uuid(), p_generation, p_name, '{}', true)
  on conflict (worker_id) do update set stopping = true
$$;
create function core.worker_unregister(p_worker uuid, p_channels text[]) returns void
language sql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
  delete from core.claim_journal j where j.worker_id = p_worker;
  delete from core.workers w where w.worker_id = p_worker and not exists (select from core.outbox o
    where o.status = 'in_flight' and o.deleted_at is null and starts_with(o.claimed_by, p_worker::text));
  select pg_notify(c, '') from unnest(p_channels) as c;
$$;
create function core.claim_journal_write(p_worker uuid, p_event_type text, p_runner integer, p_ids uuid[],
  p_handlers text[] default '{}') returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_unused text;
begin
  v_unused := set_config('synchronous_commit', 'off', true);
  insert into core.claim_journal as j (worker_id, event_type, runner, ids, handlers)
  select p_worker, p_event_type, p_runner, p_ids, p_handlers
  where exists (select from core.workers w where w.worker_id = p_worker)
  on conflict (worker_id, event_type, runner) do update
  set ids = p_ids, handlers = p_handlers, claimed_at = clock_timestamp();
end
$$;
create function core.claim_suspects(p_worker uuid) returns uuid[] language plpgsql volatile as $$
begin
  return (
    with gone as materialized
      (select w.worker_id from core.workers w where w.worker_id is distinct from p_worker
        and core.worker_gone(w.session_id))
    select array_agg(i.id) from gone g join core.claim_journal j on j.worker_id = g.worker_id, unnest(j.ids) as i(id));
end
$$;
create function core.workers_probe(p_worker uuid, p_grace double precision) returns double precision
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  update core.workers w set gone_at = clock_timestamp() where w.worker_id in
    (select g.worker_id from core.workers g
     where g.worker_id <> p_worker and g.gone_at is null and core.worker_gone(g.session_id)
     order by g.worker_id for update skip locked);
  return (select greatest(extract(epoch from min(w.gone_at) - clock_timestamp()) + p_grace, 0)
          from core.workers w where w.worker_id <> p_worker and w.gone_at is not null
          having count(*) > 0); -- no row, so null: greatest ignores nulls and would say 0
end
$$;
create function core.outbox_reap(p_limit integer default 50, p_after uuid default null,
  p_grace double precision default 2) returns table (event_id uuid, event_type text, generation bigint,
  attempts integer, crashes integer, failed boolean, reaped boolean, reason text, source text, target text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  c_crashes constant integer := 5;
  v_held record;
  v_row core.outbox;
  v_restarted boolean;
  v_available_at timestamptz;
  v_lines integer := 0;
  v_counted boolean;
  v_charged boolean;
  v_reason text;
  v_failed_by jsonb;
  v_blamed text[] := '{}';
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_skipped uuid[] := array(select q.id from core.quarantined_events q);
  v_xid xid8;
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    raise exception 'p_limit %: must be from 1 to 1000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if not pg_try_advisory_xact_lock(5583017264419803127) then return; end if;
  v_xid := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  delete from core.claim_journal j where core.server_restarted(j.claimed_at) -- which explains the lost sessions
    or exists (select from core.workers w where w.worker_id = j.worker_id and w.stopping);
  for v_held in
    with gone as materialized
      (select w.worker_id, w.name, w.charged, w.gone_at <= clock_timestamp() - make_interval(secs => p_grace) as due
       from core.workers w where core.worker_gone(w.session_id)),
    held as materialized
      (select o.id, o.occurred_at, o.status, o.crashes,
        coalesce(split_part(o.claimed_by, ' ', 1), o.id::text) as worker, o.claimed_at,
        case when o.lease_handler is not null then array[o.lease_handler] else '{}' end as handlers,
        not core.lease_holds(coalesce(o.claimed_at, '-infinity'), o.lease_seconds) as due
       from core.outbox o where o.status = 'in_flight' and o.deleted_at is null and o.id <> all (v_skipped)
       union all
       select o.id, o.occurred_at, o.status, o.crashes, j.worker_id::text, j.claimed_at, j.handlers, g.due
       from gone g join core.claim_journal j on j.worker_id = g.worker_id cross join lateral
         (select k.* from core.outbox k where k.id = any (j.ids)
            and case when k.status = 'pending' then k.deleted_at is null else false end offset 0) o
       where o.available_at - case when o.waiting_for is null then interval '0' else interval '1000 years' end
         <= j.claimed_at and o.id <> all (v_skipped)),
    together as materialized
      (select h.*, count(*) over w = 1 as alone,
              first_value(h.id) over (partition by h.worker order by h.crashes > 0 desc, h.claimed_at desc nulls last,
                h.id) as latest,
              bool_or(h.crashes > 0) over w as suspected from held h window w as (partition by h.worker))
    select t.*, g.name, coalesce(g.charged, false) or t.suspected and t.id <> t.latest as other_charged,
           g.worker_id is null and exists (select from core.workers w where w.worker_id::text = t.worker) as alive,
           exists (select from core.workers w where w.worker_id::text = t.worker and w.stopping) as stopping
    from together t left join gone g on g.worker_id::text = t.worker
    where t.due and (p_after is null or t.id > p_after) order by t.id, t.occurred_at loop
    select o.* into v_row from core.outbox o
    where o.id = v_held.id and o.occurred_at = v_held.occurred_at and o.status = v_held.status and o.deleted_at is null
      and case o.status when 'in_flight' then not core.lease_holds(coalesce(o.claimed_at, '-infinity'), o.lease_seconds)
          else o.available_at - case when o.waiting_for is null then interval '0' else interval '1000 years' end
            <= v_held.claimed_at end -- not, if it was reaped for another dead worker
    for update skip locked;
    continue when not found;
    event_id := v_row.id;
    event_type := v_row.event_type;
    source := v_row.source;
    target := v_row.target;
    generation := v_row.generation;
    v_restarted := coalesce(core.server_restarted(v_held.claimed_at), false);
    v_counted := not v_restarted and not v_held.alive and not v_held.stopping and not v_held.other_charged;
    v_charged := v_counted and (v_row.crashes > 0 or v_held.alone);
    attempts := case when v_row.status = 'in_flight' then greatest(v_row.attempts - v_held.stopping::integer, 0)
      else v_row.attempts + v_charged::integer end;
    crashes := least(v_row.crashes, 1000000) + v_counted::integer;
    failed := v_counted and crashes >= c_crashes;
    v_reason := case when v_row.status = 'in_flight'
        then format('LeaseExpired: %s: the lease of %s s ran out: worker %s did not renew it after %s: %s',
          coalesce(v_row.lease_handler, 'outbox'), v_row.lease_seconds, coalesce(v_row.claimed_by, 'unknown'),
          to_char(v_row.claimed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
          case when v_held.stopping then 'it stopped' when v_restarted then 'disconnected'
            else 'killed, frozen or disconnected' end)
        else format('WorkerDied: outbox: worker %s ended, froze or lost its connection while it ran this event: '
          'killed, out of memory, exit', v_held.name) end
      || case when v_held.stopping then '; not counted'
              when v_restarted then '; not counted: the server was started since'
              when v_held.alive then '; not counted: the worker lives'
              when not v_counted then '; not counted: it ran another event with crashes'
              when not v_charged then '; it ran others as well: each runs alone from now on'
              else format('; crash %s of %s', crashes, c_crashes) end;
    reason := left(v_reason, 2000); -- that fits into last_error, whatever its letters
    begin -- a row that cannot be written must not keep those behind it
      v_failed_by := core.failed_by_sql(v_row.id, v_row.occurred_at, split_part(reason, ':', 1), reason,
        v_held.handlers, coalesce(v_row.claimed_by, v_held.worker || ' ' || v_held.name), v_held.claimed_at);
      update core.outbox o
      set status = case when failed then 'failed' else 'pending' end, claim_token = null, claimed_by = null,
          lease_handler = null, claimed_at = case when failed then clock_timestamp() else o.claimed_at end,
          attempts = least(outbox_reap.attempts, 1000000000), crashes = outbox_reap.crashes, last_error = reason,
          waiting_for = null,
          handler_failures = o.handler_failures || case when failed then v_failed_by else '{}' end,
          available_at = clock_timestamp() + make_interval(secs => outbox_reap.crashes * v_charged::integer),
          first_failed_at = coalesce(o.first_failed_at, clock_timestamp()),
          failure_history = core.failure_history_with(o.failure_history, jsonb_build_object(
            'reaped_at', clock_timestamp(), 'reason', reason, 'attempts', o.attempts, 'handler', o.lease_handler,
            'claimed_by', coalesce(o.claimed_by, v_held.worker || ' ' || v_held.name), 'claimed_at', v_held.claimed_at))
      where o.id = v_row.id and o.occurred_at = v_row.occurred_at returning o.available_at into v_available_at;
      if v_available_at is null or v_available_at = v_row.available_at then perform core.row_kept(); end if;
      set constraints all immediate;
      reaped := true;
      v_ids := v_ids || v_row.id;
      v_channels := v_channels || v_row.channel;
      if v_charged then v_blamed := v_blamed || v_held.worker; end if;
    exception when others then
      reaped := false;
      reason := sqlstate || ': ' || sqlerrm;
      crashes := v_row.crashes;
      failed := false;
      if core.row_fault(sqlstate) then
        failed := core.outbox_give_up(v_row.id, v_row.occurred_at, v_row.claim_token, reason) = 'failed';
        if not failed then reason := 'quarantined: ' || reason; end if;
        v_skipped := v_skipped || v_row.id;
      end if;
    end;
    return next;
    v_lines := v_lines + 1;
    exit when v_lines = p_limit;
  end loop;
  perform pg_notify(n.channel, n.id::text) from (select distinct on (u.channel) u.channel, u.id
    from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
  update core.workers w set charged = true where w.worker_id::text = any (v_blamed);
  update core.claim_journal j set ids = array(select o.id from core.outbox o
    where o.id = any (j.ids) and case when o.status = 'pending' then o.deleted_at is null else false end
      and o.available_at <= j.claimed_at and o.id <> all (v_skipped))
  from core.workers w
  where w.worker_id = j.worker_id and cardinality(j.ids) > 0
    and w.gone_at <= clock_timestamp() - make_interval(secs => p_grace) and core.worker_gone(w.session_id);
  delete from core.workers w
  where w.gone_at <= clock_timestamp() - make_interval(secs => p_grace) and core.worker_gone(w.session_id)
    and not exists (select from core.claim_journal j where j.worker_id = w.worker_id and cardinality(j.ids) > 0)
    and not exists (select from core.outbox o where o.status = 'in_flight' and o.deleted_at is null
      and starts_with(o.claimed_by, w.worker_id::text) and o.id <> all (v_skipped));
  delete from core.claim_journal j where not exists (select from core.workers w where w.worker_id = j.worker_id);
end
$$;
-- +goose StatementEnd
grant execute on function core.worker_lock to spectral_operator;
grant execute on function core.worker_difference, core.worker_register, core.worker_stopping, core.worker_unregister,
  core.claim_journal_write, core.workers_probe, core.outbox_reap to spectral_worker;

-- +goose StatementBegin
create function core.types_held(p_worker uuid) returns text[]
language sql stable security definer set search_path = pg_catalog, core, pg_temp as $$
  select coalesce(array_agg(distinct j.event_type), '{}') from core.claim_journal j
  where j.worker_id <> p_worker and cardinality(j.ids) > 0
$$;
-- +goose StatementEnd
grant execute on function core.types_held to spectral_worker;

create view core.live_workers as
  select w.worker_id, w.generation, w.name, w.handlers, w.registered_at
  from core.workers w
  where exists (
    select from pg_catalog.pg_locks l
    where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ExclusiveLock'
      and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
      and (l.classid::bigint << 32 | l.objid::bigint) = core.worker_lock(w.session_id));
comment on view core.live_workers is 'Workers whose session lives.';
comment on column core.live_workers.handlers is 'event type to sorted handler names';
grant select on core.live_workers to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop view core.live_workers;
drop function core.types_held;
drop function core.worker_lock, core.worker_difference, core.worker_register, core.worker_stopping,
  core.worker_unregister, core.worker_gone, core.claim_journal_write, core.claim_suspects, core.workers_probe,
  core.outbox_reap;
drop table core.claim_journal, core.workers;
