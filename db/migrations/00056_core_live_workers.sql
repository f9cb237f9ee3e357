-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- core.live_workers are the workers whose session lives, whatever core.workers has noted of them: those that hold the
-- advisory lock core.worker_lock(session_id), whose key is in two halves there. It takes no lock itself.
create view core.live_workers as
  select w.worker_id, w.generation, w.name, w.handlers, w.registered_at
  from core.workers w
  where exists (
    select from pg_catalog.pg_locks l
    where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ExclusiveLock'
      and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
      and (l.classid::bigint << 32 | l.objid::bigint) = pg_catalog.hashtextextended(w.session_id::text, 4871030926153309871));
comment on view core.live_workers is 'Workers whose session lives.';
comment on column core.live_workers.handlers is 'event type to sorted handler names';
grant select on core.live_workers to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop view core.live_workers;
