-- core.operation_step(p_operation) carries on one operation by one short step, and returns its id and in how many
-- seconds the next step is of use: null if it is not running. Null for p_operation: the one that has waited longest; no
-- line: there is none, or another session carries it on. Workers call it, and the command that began an operation.
--
-- A step takes in what became of up to 1,000 events that were replayed, and acts on a batch of events that the plan
-- froze and that have not changed since, by core.outbox_replay_many or core.outbox_discard_many, in the name of who
-- made the plan. It pauses the operation after a canary, if too many events failed again, and if a batch is refused;
-- why says so. Writes what these write, core.operations, core.operation_rows; reads core.outbox.
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
  v_done integer[];
begin
  select o.* into v_o from core.operations o
  where o.state <> 'done' and (p_operation is null or o.id = p_operation)
    and (o.state = 'running' or exists (select from core.operation_rows r where r.operation_id = o.id
      and r.outcome = 'acted'))
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
  v_settled := v_o.delivered - v_o.delivered_before + v_o.failed - v_o.failed_before;

  if v_o.state = 'running' and v_settled >= least(10, v_o.total, coalesce(v_o.canary, 10))
     and v_o.failed - v_o.failed_before > v_o.max_failed * v_settled then
    v_o.state := 'paused';
    v_o.why := format('%s of %s events have failed again', v_o.failed - v_o.failed_before, v_settled);
  elsif v_o.state = 'running' and v_o.acted >= v_o.canary and not v_waiting then
    if v_o.goes_on and v_o.failed = v_o.failed_before
       and v_o.delivered >= v_o.canary - v_o.failed_before then
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
  if cardinality(v_ns) > 0 then
    begin
      select coalesce(array_agg(k.n), '{}') into v_done
      from (select d.event_id, d.occurred_at from core.outbox_replay_many(v_ids, v_o.generation, v_o.created_by, v_ats,
              v_o.as_of, v_o.force, v_o.run, v_o.skip) d where v_o.name = 'replay'
            union all
            select d.event_id, d.occurred_at from core.outbox_discard_many(v_ids, v_o.created_by, v_o.reason, v_ats,
              v_o.as_of) d where v_o.name = 'discard') d
      join unnest(v_ns, v_ids, v_ats) as k(n, id, at) on k.id = d.event_id and k.at = d.occurred_at;
      update core.operation_rows r set
        outcome = case when r.n <> all (v_done) then 'skipped'
          when v_o.name = 'replay' then 'acted' else 'discarded' end,
        note = case when r.n <> all (v_done) then coalesce((select case when k.discarded_at is not null then 'discarded'
          when k.deleted_at is not null then 'expired' when k.status = 'failed' and k.claimed_at >= v_o.as_of
          then 'failed again' else k.status end from core.outbox k
          where k.id = r.event_id and k.occurred_at = r.occurred_at), 'gone') end
      where r.operation_id = v_o.id and r.n = any (v_ns);
      v_o.acted := v_o.acted + cardinality(v_done);
      v_o.skipped := v_o.skipped + cardinality(v_ns) - cardinality(v_done);
    exception when others then
      if left(sqlstate, 2) <> 'SP' and not core.row_fault(sqlstate) then raise; end if;
      v_o.state := 'paused';
      v_o.why := left(sqlstate || ': ' || sqlerrm, 1000);
    end;
  end if;
  if v_o.state = 'running' and not exists (select from core.operation_rows r where r.operation_id = v_o.id
       and (r.outcome is null or r.outcome = 'acted')) then
    v_o.state := 'done';
  end if;
  update core.operations o set delivered = v_o.delivered, failed = v_o.failed, acted = v_o.acted, skipped = v_o.skipped,
    canary = v_o.canary, why = v_o.why, stepped_at = v_now,
    checked = v_o.checked, acted_at = case when cardinality(v_ns) > 0
      then v_from + make_interval(secs => cardinality(v_ns) / v_o.rate) else o.acted_at end, state = v_o.state,
    state_at = case when o.state = v_o.state then o.state_at else clock_timestamp() end,
    state_by = case when o.state = v_o.state then o.state_by else 'core.operation_step' end
  where o.id = v_o.id;
  next_in := case
    when v_o.state = 'running' and coalesce(cardinality(v_ns), 0) = 0
      then case when v_seen.count > 0 then 0.1 else 1 end
    when v_o.state = 'running' then least(greatest(cardinality(v_ns) / v_o.rate, 0.001), 1) end;
  return next;
end
$$;
