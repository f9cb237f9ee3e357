-- core.operation_step(p_operation) carries on one operation by one short step, and returns its id and in how many
-- seconds the next step is of use: null if it is not running. Null for p_operation: the one that has waited longest, a
-- paused one every ten seconds; no line: there is none, or another session carries it on. Workers call it, and the
-- command that began an operation.
--
-- A step takes in what became of up to 1,000 events that were replayed, and acts on a batch of events that the plan
-- froze and that have not changed since, by core.outbox_replay_many or core.outbox_discard_many, in the name of who
-- made the plan. A locked event has its turn again; one that cannot be written is skipped. It pauses the operation
-- after a canary, if too many events failed again, and if a batch is refused; why says so. Writes what these write,
-- core.operations, core.operation_rows; reads core.outbox.
create function core.operation_step(p_operation uuid default null)
returns table (operation uuid, next_in double precision)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_o core.operations;
  v_limit integer;
  v_from timestamptz;
  v_waiting boolean;
  v_settled integer;
  v_seen record;
  v_ns integer[];
  v_ids uuid[];
  v_ats timestamptz[];
  v_done integer[] := '{}';
  v_size integer; -- the events from v_i to v_j are acted on at once
  v_i integer := 1;
  v_j integer;
  v_faults integer := 0; -- events that cannot be written
  v_skipped integer;
  v_count integer;
begin
  select o.* into v_o from core.operations o
  where o.state <> 'done' and (p_operation is null or o.id = p_operation)
    and (o.state = 'running' or (p_operation is not null or o.stepped_at < v_now - interval '10 seconds')
      and exists (select from core.operation_rows r where r.operation_id = o.id and r.outcome = 'acted'))
  order by o.stepped_at limit 1 for update skip locked;
  if not found then return; end if;
  operation := v_o.id;

  -- what was replayed and has settled
  with acted as materialized
    (select r.n, r.event_id, r.occurred_at from core.operation_rows r
     where r.operation_id = v_o.id and r.outcome = 'acted' and r.n > v_o.checked order by r.n limit 1000),
  found as
    (select a.n, case when o.id is null then 'gone' else o.status end as outcome
     from acted a left join lateral (select k.id, k.status from core.outbox k
       where k.id = a.event_id and k.occurred_at = a.occurred_at offset 0) o on true),
  written as
    (update core.operation_rows r set outcome = f.outcome from found f
     where r.operation_id = v_o.id and r.n = f.n and f.outcome in ('delivered', 'failed', 'gone') returning r.outcome)
  select count(*) filter (where w.outcome = 'delivered') as delivered,
    count(*) filter (where w.outcome = 'failed') as failed, count(*) as count,
    (select case when count(*) = 1000 then max(a.n) else 0 end from acted a) as checked
  into v_seen from written w;
  v_o.checked := v_seen.checked;
  v_o.delivered := v_o.delivered + v_seen.delivered;
  v_o.failed := v_o.failed + v_seen.failed;
  v_waiting := exists (select from core.operation_rows r where r.operation_id = v_o.id and r.outcome = 'acted');
  -- since it was begun or resumed
  v_settled := v_o.delivered - v_o.delivered_before + v_o.failed - v_o.failed_before;

  if v_o.state = 'running' and v_settled >= least(10, v_o.total, coalesce(v_o.canary, 10))
     and v_o.failed - v_o.failed_before > v_o.max_failed * v_settled then
    v_o.state := 'paused';
    v_o.why := format('%s of %s events have failed again', v_o.failed - v_o.failed_before, v_settled);
  elsif v_o.state = 'running' and v_o.acted >= v_o.canary and not v_waiting then
    if v_o.goes_on and v_o.failed = v_o.failed_before then
      v_o.canary := null;
    else
      v_o.state := 'paused';
      v_o.why := format('canary: %s delivered, %s failed again', v_o.delivered, v_o.failed);
    end if;
  end if;

  -- at most a second's worth at once
  v_from := greatest(v_o.acted_at, v_now - make_interval(secs => greatest(1, 1 / v_o.rate)));
  if v_o.state = 'running' then
    v_limit := least(v_o.batch, v_o.canary - v_o.acted,
      floor(v_o.rate * extract(epoch from v_now - v_from) + 1e-6));
    select array_agg(r.n), array_agg(r.event_id), array_agg(r.occurred_at) into v_ns, v_ids, v_ats
    from (select r.* from core.operation_rows r where r.operation_id = v_o.id and r.outcome is null
          order by r.n limit greatest(v_limit, 0)) r;
  end if;
  -- all at once, or, if one of them cannot be written, one by one
  v_size := cardinality(v_ns);
  while v_i <= cardinality(v_ns) loop
    v_j := least(v_i + v_size - 1, cardinality(v_ns));
    begin
      v_done := v_done || array(select k.n
        from (select d.event_id, d.occurred_at from core.outbox_replay_many(v_ids[v_i:v_j], v_o.generation,
                v_o.created_by, v_ats[v_i:v_j], v_o.as_of, v_o.force, v_o.run, v_o.skip) d where v_o.name = 'replay'
              union all
              select d.event_id, d.occurred_at from core.outbox_discard_many(v_ids[v_i:v_j], v_o.created_by, v_o.reason,
                v_ats[v_i:v_j], v_o.as_of) d where v_o.name = 'discard') d
        join unnest(v_ns[v_i:v_j], v_ids[v_i:v_j], v_ats[v_i:v_j]) as k(n, id, at)
          on k.id = d.event_id and k.at = d.occurred_at);
      v_i := v_j + 1;
    exception when others then
      if core.row_fault(sqlstate) and left(sqlstate, 2) <> 'SP' then
        if v_size = 1 then
          update core.operation_rows r set outcome = 'skipped', note = left(sqlstate || ': ' || sqlerrm, 200)
          where r.operation_id = v_o.id and r.n = v_ns[v_i];
          v_faults := v_faults + 1;
          v_i := v_i + 1;
        end if;
        v_size := 1;
      elsif left(sqlstate, 2) <> 'SP' then
        raise;
      end if;
      if left(sqlstate, 2) = 'SP' or v_faults > 1 and v_faults = cardinality(v_ns) then
        v_o.state := 'paused';
        v_o.why := left(sqlstate || ': ' || sqlerrm, 1000);
        exit;
      end if;
    end;
  end loop;
  with tried as
    (select r.n, case
       when r.n = any (v_done) then null
       when k.id is null then 'gone'
       when k.discarded_at is not null then 'discarded'
       when k.deleted_at is not null then 'expired'
       when k.status = 'failed' and k.claimed_at >= v_o.as_of then 'failed again'
       when k.status <> 'failed' and not (k.status = 'delivered' and v_o.force and k.delivered_at < v_o.as_of)
         then k.status
       when v_o.name = 'replay' and core.unconsumed(k.event_type, k.event_version, v_o.generation)
         then 'of no handler' end as note -- null: it is locked
     from core.operation_rows r
     left join lateral (select o.* from core.outbox o
       where o.id = r.event_id and o.occurred_at = r.occurred_at offset 0) k on true
     where r.operation_id = v_o.id and r.n = any (v_ns[:v_i - 1]) and r.outcome is null),
  written as
    (update core.operation_rows r set note = t.note,
       outcome = case when t.note is not null then 'skipped' when v_o.name = 'replay' then 'acted' else 'discarded' end
     from tried t where r.operation_id = v_o.id and r.n = t.n and (t.note is not null or t.n = any (v_done))
     returning r.outcome)
  select v_faults + count(*) filter (where w.outcome = 'skipped'), v_faults + count(*) into v_skipped, v_count
  from written w;
  v_o.acted := v_o.acted + cardinality(v_done);
  v_o.skipped := v_o.skipped + v_skipped;
  if v_o.state = 'running' and not exists (select from core.operation_rows r where r.operation_id = v_o.id
       and (r.outcome is null or r.outcome = 'acted')) then
    v_o.state := 'done';
  end if;
  update core.operations o set delivered = v_o.delivered, failed = v_o.failed, acted = v_o.acted, skipped = v_o.skipped,
    canary = v_o.canary, why = v_o.why, stepped_at = v_now,
    checked = v_o.checked, acted_at = case when v_count > 0
      then v_from + make_interval(secs => v_count / v_o.rate) else o.acted_at end, state = v_o.state,
    state_at = case when o.state = v_o.state then o.state_at else clock_timestamp() end,
    state_by = case when o.state = v_o.state then o.state_by else 'core.operation_step' end
  where o.id = v_o.id;
  next_in := case
    when v_o.state = 'running' and v_count = 0
      then case when v_seen.count > 0 then 0.1 else 1 end
    when v_o.state = 'running' then least(greatest(v_count / v_o.rate, 0.001), 1) end;
  return next;
end
$$;
