-- core.failed_by_sql(p_event_id, p_occurred_at, p_class, p_reason, p_handlers, p_worker, p_started_at) keeps a failed
-- attempt of an event that no handler reported: of each of p_handlers, which had begun, or, if that is not known, of
-- "outbox". Its group is that of p_class. Returns what handler_failures says of an event that fails for it. Writes
-- core.failed_attempts, core.error_groups; reads core.outbox.
create function core.failed_by_sql(p_event_id uuid, p_occurred_at timestamptz, p_class text, p_reason text,
  p_handlers text[], p_worker text, p_started_at timestamptz) returns jsonb
language plpgsql volatile as $$
declare
  v_message constant text := case p_class
    when 'RowFault' then 'the row cannot be read or written'
    when 'WorkerDied' then 'the worker ended, froze or lost its connection'
    else 'the lease ran out' end;
  v_ago constant double precision := case
    when isfinite(p_started_at) then extract(epoch from clock_timestamp() - p_started_at) else 0 end;
begin
  perform core.failed_attempts_add(p_event_id, p_occurred_at, coalesce(p_worker, ''), jsonb_agg(jsonb_build_object(
    'handler_name', h.name, 'started_ago', v_ago, 'duration_ms', (least(v_ago, 1e9) * 1000)::bigint,
    'error_class', p_class, 'error', p_reason, 'group_id', p_class, 'message', v_message)))
  from unnest(case when cardinality(p_handlers) > 0 then p_handlers else array['outbox'] end) as h(name);
  return jsonb_build_object('outbox', jsonb_build_object('failures', 1, 'parked', true, 'class', p_class,
    'error', p_reason, 'group', p_class));
end
$$;
