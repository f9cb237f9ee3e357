-- What becomes of rows that a worker had in hand when it died (docs/decisions/0008).

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.workers_probe(p_worker, p_grace) notes which workers, other than the calling one, have lost
-- their session, and which have it back. Returns in how many seconds the next one will have been
-- gone for p_grace seconds, null when none is gone. Writes core.workers.
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
-- +goose StatementEnd
grant execute on function core.workers_probe(uuid, double precision) to spectral_worker;

-- +goose StatementBegin
-- core.workers_lost(p_grace) lists, for the log, the workers that have been without a session for
-- p_grace seconds, and the rows that each had in hand: those of its claims that are as they were
-- claimed. Reads core.workers, core.claim_journal, core.outbox.
create function core.workers_lost(p_grace double precision)
returns table (worker_id uuid, name text, gone_at timestamptz, in_hand uuid[])
language sql stable security definer
set search_path = pg_catalog, core, pg_temp
as $$
  select w.worker_id, w.name, w.gone_at,
         array(select o.id from core.claim_journal j join core.outbox o on o.id = any (j.ids)
               where j.worker_id = w.worker_id and o.status = 'pending' and o.deleted_at is null and o.available_at <= j.claimed_at
               limit 100)
  from core.workers w
  where w.gone_at <= clock_timestamp() - make_interval(secs => p_grace)
$$;
-- +goose StatementEnd
grant execute on function core.workers_lost(double precision) to spectral_worker;

-- +goose StatementBegin
-- core.claim_in_hand(p_ids, p_claimed_at) says whether any row of a claim is as it was claimed:
-- not settled and not due anew. Reads core.outbox.
create function core.claim_in_hand(p_ids uuid[], p_claimed_at timestamptz) returns boolean
language sql stable
begin atomic
  select exists (select from core.outbox o where o.id = any (p_ids) and o.status = 'pending' and o.deleted_at is null
                   and o.available_at <= p_claimed_at);
end;
-- +goose StatementEnd

-- +goose StatementBegin
-- core.claim_verdict(p_generation, p_event_types, p_grace) takes up what workers had in hand that
-- have been without a session for p_grace seconds. What the worker had in hand beside other
-- rows runs alone from now on, nothing is counted; the listeners are woken. What it had alone, or
-- ran alone because a worker had died of it before, is returned, locked, for the caller to count
-- that in the same transaction: one row at a time, none when there is no more. Its handler is the
-- one that ran, null if several may have; restarted says that the server itself has started
-- since, which explains the lost session. A row whose lock is still held waits for a later call.
-- Writes core.claim_journal, core.workers, core.outbox.
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
-- +goose StatementEnd
grant execute on function core.claim_verdict(bigint, text[], double precision) to spectral_worker;

-- +goose StatementBegin
-- core.worker_leave(p_worker, p_channels) says that a worker has ended with nothing in hand, and
-- wakes the others: what it let go of last rang nobody. Writes core.workers, core.claim_journal.
create function core.worker_leave(p_worker uuid, p_channels text[]) returns void
language sql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
  delete from core.claim_journal j where j.worker_id = p_worker;
  delete from core.workers w where w.worker_id = p_worker;
  select pg_notify(c, '') from unnest(p_channels) as c;
$$;
-- +goose StatementEnd
grant execute on function core.worker_leave(uuid, text[]) to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.worker_leave(uuid, text[]);
drop function core.claim_verdict(bigint, text[], double precision);
drop function core.workers_lost(double precision);
drop function core.claim_in_hand(uuid[], timestamptz);
drop function core.workers_probe(uuid, double precision);
