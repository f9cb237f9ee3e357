-- core.outbox_replay(p_event_id, p_new_generation, p_replayed_by, p_occurred_at, p_force) lets a failed event run again under the
-- code of p_new_generation, at once and with a fresh count of retries. The cycle that ends is appended to failure_history:
-- {cycle, attempts, last_error, first_failed_at, failed_at, replayed_at, replayed_by}; its columns, the claim token and
-- handler_failures are cleared. The channel becomes that generation's, its class kept, and its workers are woken. The
-- idempotency key is kept: handlers that have handled the event do not run again (core.outbox_replay_preview). Cycles are counted from 1, and
-- leases that were reaped are none. Returns the number of the one that ended.
--
-- With p_force a delivered event is replayed, too, for a handler that came later. p_occurred_at is only needed where several events
-- have the id. p_replayed_by is the caller's choice; null leaves it to the login, in core.operator_actions.
--
-- Refuses an unknown event (SP031), one that is pending, in flight or delivered (SP032), discarded or past its retention (SP033), an id of several
-- (SP035), a type that nobody in the generation consumes (SP036), a generation that is none, unknown or retired (SP019), a blank p_replayed_by (SP030). Writes
-- core.outbox, core.operator_actions; reads core.deployments, core.event_types.
create function core.outbox_replay(p_event_id uuid, p_new_generation bigint, p_replayed_by text default null,
  p_occurred_at timestamptz default null, p_force boolean default false) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
  v_cycle integer;
begin
  v_occurred_at := core.operated_event('replay', p_event_id, p_occurred_at, p_force);
  -- nobody but another operator locks a failed row, and not for long; who was first, the second is told
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('replay', p_event_id, v_occurred_at, p_force);
  select r.cycle into v_cycle
  from core.outbox_replay_many(array[p_event_id], p_new_generation, p_replayed_by, array[v_occurred_at], p_force => p_force) r;
  if v_cycle is null then
    raise exception 'event %: nobody consumes its type in generation %', p_event_id, p_new_generation
      using errcode = 'SP036', column = 'event_id', hint = 'replay it into a generation that handles it, or discard it';
  end if;
  return v_cycle;
end
$$;
