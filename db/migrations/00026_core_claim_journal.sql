-- What each worker has in hand, committed before its handlers run: only so can others know what a
-- worker died of (docs/decisions/0008).

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

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

-- +goose StatementBegin
-- core.claim_journal_write(...) notes a claim before its handlers run, in place of the runner's
-- earlier one; no ids: it has nothing in hand. The commit does not wait for the disk: the note is
-- about the death of a worker, not of the server. Writes core.claim_journal.
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
-- +goose StatementEnd
grant execute on function core.claim_journal_write(uuid, text, integer, bigint, uuid[], boolean, text) to spectral_worker;

-- +goose StatementBegin
-- core.workers_gone(p_except) lists the workers, but for one, whose session lock is free. The
-- locks that it tries are given back at once: they are taken in a block that an error ends. Reads
-- core.workers.
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
-- core.claim_suspects(p_worker) lists the rows that workers had in hand whose session is gone, as
-- seen by a live worker: nobody claims them until it is known what to make of it, or for two
-- minutes after it was noticed: rows must not wait for a verdict that nobody gives. Null: nobody
-- is gone. Reads core.workers, core.claim_journal.
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
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.claim_suspects(uuid);
drop function core.workers_gone(uuid);
drop function core.claim_journal_write(uuid, text, integer, bigint, uuid[], boolean, text);
drop table core.claim_journal;
