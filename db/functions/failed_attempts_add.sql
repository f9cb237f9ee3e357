-- core.failed_attempts_add(p_event_id, p_occurred_at, p_worker, p_attempts) keeps failed attempts of one event: for
-- each element of p_attempts its handler_name, started_ago in seconds, duration_ms, error_class, error, stack,
-- trace_id, and of its group the group_id and message. Of a handler's attempts the latest ten stay. Writes
-- core.failed_attempts, core.error_groups; reads core.outbox.
create function core.failed_attempts_add(p_event_id uuid, p_occurred_at timestamptz, p_worker text,
  p_attempts jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_event record;
  v_a record;
  v_attempt integer;
begin
  select o.generation, core.prior_replays(o.failure_history) as cycle into v_event from core.outbox o
  where o.id = p_event_id and o.occurred_at = p_occurred_at;
  if not found then return; end if;
  for v_a in
    select a.* from jsonb_to_recordset(p_attempts) as a(handler_name text, started_ago double precision,
      duration_ms bigint, error_class text, error text, stack text, trace_id text, group_id text, message text)
    order by a.group_id
  loop
    perform core.error_group_seen(v_a.group_id, v_a.handler_name, v_a.error_class, v_a.message, v_event.generation);
    v_attempt := coalesce((select max(f.attempt) from core.failed_attempts f where f.event_id = p_event_id
      and f.occurred_at = p_occurred_at and f.handler_name = v_a.handler_name), 0) + 1;
    insert into core.failed_attempts (event_id, occurred_at, handler_name, attempt, cycle, started_at, duration_ms,
      worker, error_class, error, stack, trace_id, group_id)
    values (p_event_id, p_occurred_at, v_a.handler_name, v_attempt, v_event.cycle,
      clock_timestamp() - make_interval(secs => least(greatest(v_a.started_ago, 0), 1e6)), v_a.duration_ms,
      left(p_worker, 256), left(v_a.error_class, 256), core.error_text(v_a.error), left(v_a.stack, 4096),
      left(v_a.trace_id, 64), left(v_a.group_id, 64))
    on conflict do nothing;
    delete from core.failed_attempts f where f.event_id = p_event_id and f.occurred_at = p_occurred_at
      and f.handler_name = v_a.handler_name and f.attempt <= v_attempt - 10;
  end loop;
end
$$;
