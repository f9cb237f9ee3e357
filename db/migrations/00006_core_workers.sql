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
  constraint workers_pk primary key (worker_id),
  constraint workers_generation_range check (generation between 1 and 999999999999),
  constraint workers_name_size check (octet_length(name) between 1 and 256),
  constraint workers_handlers_object check (jsonb_typeof(handlers) = 'object')
) with (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
comment on table core.workers is 'Worker processes. A live one holds the session lock core.worker_lock(session_id).';
comment on column core.workers.name is 'host and process, for people';
comment on column core.workers.handlers is 'event type to sorted handler names';
comment on column core.workers.gone_at is 'when it was first found without its session lock, null while it holds it';
grant select on core.workers to spectral_operator;

-- What each worker has in hand, committed before its handlers run: only so can others know what a
-- worker died of (docs/decisions/0008).
create table core.claim_journal (
  worker_id uuid not null,
  event_type text not null,
  runner integer not null,
  generation bigint not null,
  ids uuid[] not null,
  alone boolean not null,
  handler text null,
  claimed_at timestamptz not null default clock_timestamp(),
  server_started_at timestamptz not null default pg_postmaster_start_time(),
  constraint claim_journal_pk primary key (worker_id, event_type, runner),
  constraint claim_journal_alone_is_one check (not alone or cardinality(ids) <= 1)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.claim_journal is 'The latest claim of each runner of each worker.';
comment on column core.claim_journal.ids is 'rows of that claim; of one that is over they are settled, or available later than claimed_at';
comment on column core.claim_journal.handler is 'which of the handlers ran, where only one did';
comment on column core.claim_journal.server_started_at is 'a server that has started since explains a lost session';
grant select on core.claim_journal to spectral_operator;

-- Who leads in what one worker does for all.
create table core.leads (
  duty text not null,
  constraint leads_pk primary key (duty)
);
comment on table core.leads is 'One row for each duty that one transaction at a time does for all; whoever has it locked leads.';

insert into core.leads (duty) values ('ack_measure'), ('reap'), ('register');

-- +goose StatementBegin
-- db/functions/worker_lock.sql
create function core.worker_lock(p_session uuid) returns bigint
language sql immutable
as $$
  select hashtextextended(p_session::text, 4871030926153309871)
$$;
grant execute on function core.worker_lock(uuid) to spectral_operator;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/worker_difference.sql
create function core.worker_difference(p_worker uuid, p_generation bigint, p_handlers jsonb) returns text
language sql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
  select format('worker %s is live and handles %s by %s, not by %s', w.name, t.event_type, w.handlers -> t.event_type, t.names)
  from core.workers w, jsonb_each(p_handlers) as t(event_type, names)
  where w.generation = p_generation and w.worker_id <> p_worker
    and w.handlers ? t.event_type and w.handlers -> t.event_type <> t.names
    and not pg_try_advisory_xact_lock_shared(core.worker_lock(w.session_id))
  order by w.name, t.event_type
  limit 1
$$;
grant execute on function core.worker_difference(uuid, bigint, jsonb) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/worker_register.sql
create function core.worker_register(p_worker uuid, p_generation bigint, p_name text, p_handlers jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_difference text;
  v_session constant uuid := gen_random_uuid();
begin
  -- one at a time: of two that start together, the second sees the first
  perform core.turn('register');
  v_difference := core.worker_difference(p_worker, p_generation, p_handlers);
  if v_difference is not null then
    return v_difference;
  end if;
  perform pg_advisory_lock(core.worker_lock(v_session));
  insert into core.workers (worker_id, session_id, generation, name, handlers)
  values (p_worker, v_session, p_generation, p_name, p_handlers)
  on conflict (worker_id) do update set session_id = v_session, gone_at = null;
  return null;
end
$$;
grant execute on function core.worker_register(uuid, bigint, text, jsonb) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/worker_leave.sql
create function core.worker_leave(p_worker uuid, p_channels text[]) returns void
language sql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
  delete from core.claim_journal j where j.worker_id = p_worker;
  delete from core.workers w where w.worker_id = p_worker;
  select pg_notify(c, '') from unnest(p_channels) as c;
$$;
grant execute on function core.worker_leave(uuid, text[]) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/claim_journal_write.sql
create function core.claim_journal_write(
  p_worker uuid, p_event_type text, p_runner integer, p_generation bigint, p_ids uuid[], p_alone boolean, p_handler text
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_unused text;
begin
  v_unused := set_config('synchronous_commit', 'off', true);
  insert into core.claim_journal as j (worker_id, event_type, runner, generation, ids, alone, handler)
  values (p_worker, p_event_type, p_runner, p_generation, p_ids, p_alone, p_handler)
  on conflict (worker_id, event_type, runner) do update
  set ids = p_ids, alone = p_alone, handler = p_handler, claimed_at = clock_timestamp(),
      server_started_at = pg_postmaster_start_time();
end
$$;
grant execute on function core.claim_journal_write(uuid, text, integer, bigint, uuid[], boolean, text)
  to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/claim_in_hand.sql
create function core.claim_in_hand(p_ids uuid[], p_claimed_at timestamptz) returns boolean
language sql stable
as $$
  select exists (select from core.outbox o where o.id = any (p_ids) and o.status = 'pending' and o.deleted_at is null
                   and o.available_at <= p_claimed_at)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/claim_suspects.sql
create function core.claim_suspects(p_worker uuid) returns uuid[]
language plpgsql volatile
as $$
declare
  v_gone constant uuid[] := core.workers_gone(p_worker);
begin
  if v_gone is null then
    return null;
  end if;
  return (select array_agg(i.id) from core.claim_journal j join core.workers w on w.worker_id = j.worker_id, unnest(j.ids) as i(id)
          where j.worker_id = any (v_gone) and coalesce(w.gone_at, clock_timestamp()) > clock_timestamp() - interval '2 minutes');
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/claim_verdict.sql
create function core.claim_verdict(p_generation bigint, p_event_types text[], p_grace double precision)
returns table (
  event_id uuid, event_type text, event_version integer, occurred_at timestamptz, source text, target text,
  content_class text, workspace_id uuid, payload jsonb, idempotency_key text, trace_context text,
  attempts integer, available_at timestamptz, handler_failures jsonb, crashes integer, handler text, restarted boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_entry core.claim_journal;
  v_mine uuid[];
  v_held uuid[];
  v_restarted boolean;
  v_channel text;
begin
  -- of several rows in hand it cannot be told which the worker died of, unless one did it before
  update core.claim_journal j set alone = false
  from core.workers w
  where w.worker_id = j.worker_id and w.gone_at <= clock_timestamp() - make_interval(secs => p_grace)
    and j.alone and j.generation = p_generation
    and exists (select from core.claim_journal k where k.worker_id = j.worker_id
                  and (k.event_type, k.runner) <> (j.event_type, j.runner) and core.claim_in_hand(k.ids, k.claimed_at))
    and not exists (select from core.outbox o where o.id = any (j.ids) and o.crashes > 0);
  for v_entry in
    select j.* from core.claim_journal j join core.workers w on w.worker_id = j.worker_id
    where j.generation = p_generation and j.event_type = any (p_event_types) and cardinality(j.ids) > 0
      and w.gone_at <= clock_timestamp() - make_interval(secs => p_grace)
      and pg_try_advisory_xact_lock_shared(core.worker_lock(w.session_id))
    order by j.claimed_at
    for update of j, w skip locked
  loop
    v_restarted := v_entry.server_started_at <> pg_postmaster_start_time();
    select array_agg(l.id) into v_mine from
      (select o.id from core.outbox o
       where o.id = any (v_entry.ids) and o.event_type = v_entry.event_type and o.generation = v_entry.generation
         and o.status = 'pending' and o.deleted_at is null and o.available_at <= v_entry.claimed_at
       for update skip locked) l;
    select array_agg(o.id) into v_held from core.outbox o
    where o.id = any (v_entry.ids) and o.id <> all (coalesce(v_mine, '{}')) and o.event_type = v_entry.event_type and o.generation = v_entry.generation
      and o.status = 'pending' and o.deleted_at is null and o.available_at <= v_entry.claimed_at;
    update core.claim_journal j set ids = coalesce(v_held, '{}')
    where j.worker_id = v_entry.worker_id and j.event_type = v_entry.event_type and j.runner = v_entry.runner;
    continue when v_mine is null;
    if not v_restarted then
      update core.outbox o set crashes = o.crashes + 1
      where o.id = any (v_mine) and o.event_type = v_entry.event_type and o.generation = v_entry.generation and o.status = 'pending';
    end if;
    for v_channel in select distinct o.channel from core.outbox o where o.id = any (v_mine) loop
      perform pg_notify(v_channel, v_mine[1]::text);
    end loop;
    if v_entry.alone then
      return query
        select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
               o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes,
               v_entry.handler, v_restarted
        from core.outbox o
        where o.id = any (v_mine) and o.event_type = v_entry.event_type and o.generation = v_entry.generation and o.status = 'pending'
        limit 1;
      return;
    end if;
  end loop;
  -- what is left of the dead: entries about rows that are settled or were taken up since
  with over as materialized
    (select w.worker_id from core.workers w
     where w.gone_at <= clock_timestamp() - make_interval(secs => p_grace)
       and pg_try_advisory_xact_lock_shared(core.worker_lock(w.session_id))
       and not exists
         (select from core.claim_journal j where j.worker_id = w.worker_id and core.claim_in_hand(j.ids, j.claimed_at))
     order by w.worker_id for update skip locked)
  delete from core.workers w using over where w.worker_id = over.worker_id;
  delete from core.claim_journal j where not exists (select from core.workers w where w.worker_id = j.worker_id);
end
$$;
grant execute on function core.claim_verdict(bigint, text[], double precision) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/workers_gone.sql
create function core.workers_gone(p_except uuid) returns uuid[]
language plpgsql volatile
as $$
declare
  v_gone uuid[];
begin
  if not exists (select from core.workers w where w.worker_id is distinct from p_except) then
    return null;
  end if;
  begin
    select array_agg(w.worker_id) into v_gone from core.workers w
    where w.worker_id is distinct from p_except and pg_try_advisory_xact_lock_shared(core.worker_lock(w.session_id));
    raise exception using errcode = 'SPW00', message = 'gives the locks back';
  exception when sqlstate 'SPW00' then
    null;
  end;
  return v_gone;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/workers_probe.sql
create function core.workers_probe(p_worker uuid, p_grace double precision) returns double precision
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_gone constant uuid[] := coalesce(core.workers_gone(p_worker), '{}');
begin
  -- whoever else does the same does it in the same order, or does it for us
  with changed as materialized
    (select w.worker_id from core.workers w
     where w.worker_id <> p_worker and (w.gone_at is null) = (w.worker_id = any (v_gone))
     order by w.worker_id for update skip locked)
  update core.workers w
  set gone_at = case when w.worker_id = any (v_gone) then clock_timestamp() end
  from changed c where w.worker_id = c.worker_id;
  return (select greatest(extract(epoch from w.gone_at - clock_timestamp()) + p_grace, 0)
          from core.workers w where w.worker_id = any (v_gone) order by w.gone_at limit 1);
end
$$;
grant execute on function core.workers_probe(uuid, double precision) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/workers_lost.sql
create function core.workers_lost(p_grace double precision)
returns table (worker_id uuid, name text, gone_at timestamptz, in_hand uuid[])
language sql stable security definer
set search_path = pg_catalog, core, pg_temp
as $$
  select w.worker_id, w.name, w.gone_at,
         array(select o.id from core.claim_journal j join core.outbox o on o.id = any (j.ids)
               where j.worker_id = w.worker_id and o.status = 'pending' and o.deleted_at is null and o.available_at <= j.claimed_at
               limit 100)
         || array(select o.id from core.outbox o
                  where o.status = 'in_flight' and o.deleted_at is null and starts_with(o.claimed_by, w.worker_id::text)
                  limit 100)
  from core.workers w
  where w.gone_at <= clock_timestamp() - make_interval(secs => p_grace)
$$;
grant execute on function core.workers_lost(double precision) to spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/lead.sql
create function core.lead(p_duty text) returns boolean
language plpgsql volatile
as $$
begin
  perform from core.leads l where l.duty = p_duty for update skip locked;
  if found then
    return true;
  end if;
  if exists (select from core.leads l where l.duty = p_duty) then
    return false;
  end if;
  begin
    lock table core.leads in share row exclusive mode nowait; -- which does not go together with inserting
  exception when lock_not_available then
    return false;
  end;
  insert into core.leads (duty) values (p_duty) on conflict (duty) do nothing;
  perform from core.leads l where l.duty = p_duty for update skip locked;
  return found;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/turn.sql
create function core.turn(p_duty text) returns void
language plpgsql volatile
as $$
begin
  loop
    perform from core.leads l where l.duty = p_duty for update;
    exit when found;
    insert into core.leads (duty) values (p_duty) on conflict (duty) do nothing;
  end loop;
end
$$;
-- +goose StatementEnd

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
drop function core.worker_lock, core.worker_difference, core.worker_register, core.worker_leave,
  core.claim_journal_write, core.claim_in_hand, core.claim_suspects, core.claim_verdict, core.workers_gone,
  core.workers_probe, core.workers_lost, core.lead, core.turn;
drop table core.leads, core.claim_journal, core.workers;
