-- core.outbox_replay(p_event_id, p_new_generation, p_replayed_by, p_occurred_at, p_force, p_run, p_skip) runs a failed
-- event again under the code of p_new_generation, at once and with all its retries. It appends the cycle that ends to
-- failure_history: {cycle, attempts, last_error, first_failed_at, failed_at, replayed_at, replayed_by}, and clears
-- those columns, the claim token and handler_failures. The channel becomes that generation's and keeps its class, and
-- its workers are notified. The idempotency key is kept: handlers that have handled the event do not run again
-- (core.outbox_replay_preview). Cycles are counted from 1; leases that were reaped do not count. Returns the number of
-- the cycle that ended.
--
-- With p_force it replays a delivered event too, for a handler that was added later. p_run and p_skip say which
-- handlers that act outside their transaction run again (core.outbox_replay_many). p_occurred_at is only needed where
-- several events have the id. p_replayed_by is the caller's choice; with null, core.operator_actions has the login.
--
-- Refuses an unknown event (SP031), one that is pending, in flight or delivered (SP032), discarded or past its
-- retention (SP033), an id of several (SP035), a type that no handler in the generation consumes (SP036), a handler
-- that neither p_run nor p_skip names, where it must be (SP037), a generation that is unknown or retired (SP019), a
-- blank p_replayed_by (SP030). Writes core.outbox, core.event_handled, core.operator_actions; reads core.deployments,
-- core.event_types, and what core.begun_handlers reads.
create function core.outbox_replay(p_event_id uuid, p_new_generation bigint, p_replayed_by text default null,
  p_occurred_at timestamptz default null, p_force boolean default false, p_run text[] default '{}',
  p_skip text[] default '{}') returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at timestamptz;
  v_cycle integer;
begin
  v_occurred_at := core.operated_event('replay', p_event_id, p_occurred_at, p_force);
  -- only another operator locks a failed row, and not for long; the second is told who was first
  perform from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at for update;
  v_occurred_at := core.operated_event('replay', p_event_id, v_occurred_at, p_force);
  select r.cycle into v_cycle
  from core.outbox_replay_many(array[p_event_id], p_new_generation, p_replayed_by, array[v_occurred_at],
    p_force => p_force, p_run => p_run, p_skip => p_skip) r;
  if v_cycle is null then
    raise exception 'event %: no handler in generation % consumes its type', p_event_id, p_new_generation
      using errcode = 'SP036', column = 'event_id', hint = 'replay it into a generation that handles it, or discard it';
  end if;
  return v_cycle;
end
$$;
