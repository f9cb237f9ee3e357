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
grant execute on function core.claim_verdict(bigint, text[], double precision) to spectral_worker;
