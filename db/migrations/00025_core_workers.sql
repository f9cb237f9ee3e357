-- Worker processes, and whether they live.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

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

-- core.worker_lock(p_session) is the key of the advisory lock that a live worker's session holds. A
-- session's, not the worker's: one that lost its connection does not wait for the old backend to
-- notice.
create function core.worker_lock(p_session uuid) returns bigint
language sql immutable
return hashtextextended(p_session::text, 4871030926153309871);

-- +goose StatementBegin
-- core.worker_difference(...) says in which way a live worker of the generation, other than
-- p_worker, handles an event type by other handlers; null: none does. p_handlers is {"event.type":
-- ["sorted", "handler names"]}. Reads core.workers.
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
-- +goose StatementEnd
grant execute on function core.worker_difference(uuid, bigint, jsonb) to spectral_worker;

-- +goose StatementBegin
-- core.worker_register(...) makes the calling session the one whose life is the worker's, and
-- returns null. Two live workers of one generation with different handlers for one event type
-- would starve each other's: then nothing is registered and the difference is returned as text.
-- The worker's name is for people; p_handlers is {"event.type": ["sorted", "handler names"]}.
-- Called again after a lost connection. Holds a lock of the session; writes core.workers.
create function core.worker_register(p_worker uuid, p_generation bigint, p_name text, p_handlers jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_difference text;
  v_session constant uuid := gen_random_uuid();
begin
  -- one at a time: of two that start together, the second sees the first
  perform pg_advisory_xact_lock(7021385519400276351);
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
-- +goose StatementEnd
grant execute on function core.worker_register(uuid, bigint, text, jsonb) to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.worker_register(uuid, bigint, text, jsonb);
drop function core.worker_difference(uuid, bigint, jsonb);
drop function core.worker_lock(uuid);
drop table core.workers;
