-- core.outbox_replay_preview(p_event_id, p_new_generation, p_occurred_at, p_force) returns what core.outbox_replay with
-- the same arguments would run, a line for each handler, and refuses what that refuses. It changes nothing. A line
-- without a handler means that no live worker of the generation has one: the event would wait. Handlers are those of
-- the generation's live workers. Reads what core.outbox_replay_preview_many reads.
create function core.outbox_replay_preview(p_event_id uuid, p_new_generation bigint,
  p_occurred_at timestamptz default null, p_force boolean default false) returns table (handler text, would_run boolean,
  handled_at timestamptz, note text, begun boolean, effect text, on_replay text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_occurred_at constant timestamptz := core.operated_event('replay', p_event_id, p_occurred_at, p_force);
begin
  perform core.generation_open(p_new_generation, false);
  if exists (select from core.outbox o where o.id = p_event_id and o.occurred_at = v_occurred_at
             and core.unconsumed(o.event_type, o.event_version, p_new_generation)) then
    raise exception 'event %: no handler in generation % consumes its type', p_event_id, p_new_generation
      using errcode = 'SP036', column = 'event_id', hint = 'replay it into a generation that handles it, or discard it';
  end if;
  return query
    select p.handler, p.would_run, p.handled_at, p.note, p.begun, p.effect, p.on_replay
    from core.outbox_replay_preview_many(array[p_event_id], p_new_generation, array[v_occurred_at]) p;
end
$$;
