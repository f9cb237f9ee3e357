-- core.outbox_reap(p_limit, p_after, p_grace) makes pending again what dead workers held, of all generations and types:
-- rows in flight whose lease has run out, and rows in the journals of workers that have had no session for p_grace
-- seconds. It takes up to p_limit rows, in the order of their ids, after p_after, and returns a line for each. A row
-- that cannot be written is given up (core.outbox_give_up), and returned as not reaped, with the error as reason. It
-- passes over rows that others have locked. Fewer than p_limit lines mean that no more follow. One caller runs at a
-- time; the others get nothing.
--
-- Which rows a crash is charged to (crashes): if the worker ran a row that had crashes before, that row; otherwise
-- every row that it held, because each may have ended it. None, if the server was started since, if the worker has its
-- session again, or if it was told to stop, which costs no attempt either. A row with five crashes is failed.
-- docs/decisions/0008 says why this ends. Writes core.outbox, core.workers, core.claim_journal, core.failed_attempts,
-- core.error_groups.
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
         -- OFFSET and CASE leave only the primary key: planned without a backlog, others would read all of a later one
         (select k.* from core.outbox k where k.id = any (j.ids)
            and case when k.status = 'pending' then k.deleted_at is null else false end offset 0) o
       -- one that waits for a breaker since before was probed
       where o.available_at - case when o.waiting_for is null then interval '0' else interval '1000 years' end
         <= j.claimed_at and o.id <> all (v_skipped)),
    together as materialized
      -- of several rows with crashes the latest ran: a process has lost the lease of one before it claims the next
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
    -- a lease counted its own
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
          -- apart from what died with it: whichever of them ends the next worker is told from the other
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
  -- what the worker held besides, and is reaped later, is not to blame
  update core.workers w set charged = true where w.worker_id::text = any (v_blamed);
  -- the rest of an entry is settled or free again, and claims need not pass over it
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
