-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.workers_live() lists the workers whose session lock is held, without trying it: for operators, who only look.
-- Reads core.workers, pg_locks.
create function core.workers_live()
returns table (worker_id uuid, generation bigint, name text, handlers jsonb, registered_at timestamptz)
language sql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
  select w.worker_id, w.generation, w.name, w.handlers, w.registered_at
  from core.workers w
  where exists
    (select from pg_locks l
     where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ExclusiveLock'
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
       and ((l.classid::bigint << 32) | l.objid::bigint) = core.worker_lock(w.session_id))
$$;
-- +goose StatementEnd
grant execute on function core.workers_live() to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.workers_live();
