-- core.operated_event(p_action, p_event_id, p_occurred_at, p_force) raises why replay, discard, undiscard or retry_now
-- cannot be done to an event as it is now, and returns its occurred_at. p_occurred_at may be null where no other event
-- has the id. Refuses a missing id (SP030), an unknown event (SP031), one whose status the act is not for (SP032), a
-- tombstone (SP033), what is done already (SP034), an id of several events (SP035). Reads core.outbox,
-- core.retention_policies, core.quarantined_events.
create function core.operated_event(p_action text, p_event_id uuid, p_occurred_at timestamptz,
  p_force boolean default false) returns timestamptz
language plpgsql volatile as $$
declare
  v_row record;
  v_others integer := 0;
  -- how long a tombstone stays
  v_days constant integer := (select p.tombstoned_grace_days
    from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*');
begin
  if p_event_id is null then
    raise exception 'event_id: is null' using errcode = 'SP030', column = 'event_id',
      hint = 'name an event of core.outbox by its id';
  end if;
  for v_row in
    select o.occurred_at, o.status, o.deleted_at, o.discarded_at, o.available_at, o.claimed_at, o.claimed_by,
      o.lease_seconds, o.waiting_for, o.failure_history -> -1 ->> 'corrected_as' as corrected_as
    from core.outbox o where o.id = p_event_id and (p_occurred_at is null or o.occurred_at = p_occurred_at) limit 2
  loop
    v_others := v_others + 1;
  end loop;
  if v_others = 0 then
    raise exception 'event_id: % is not in core.outbox%', p_event_id, concat(' with occurred_at ' || p_occurred_at)
      using errcode = 'SP031', column = 'event_id', hint = 'check the id; retention deletes events in the end';
  end if;
  if v_others > 1 then
    raise exception 'event_id: several events have the id %', p_event_id using errcode = 'SP035', column = 'event_id',
      hint = format('also name its occurred_at: select occurred_at, event_type, status from core.outbox '
              'where id = %L; then p_occurred_at => ...', p_event_id);
  end if;

  if v_row.deleted_at is not null and v_row.discarded_at is null then
    raise exception 'event %: has been past its retention since %', p_event_id, v_row.deleted_at
      using errcode = 'SP033', column = 'event_id', hint = 'publish it again if it is still wanted';
  end if;
  if p_action = 'undiscard' then
    if v_row.discarded_at is null then
      raise exception 'event %: is not discarded, it is %', p_event_id, v_row.status
        using errcode = 'SP034', column = 'event_id', hint = 'there is nothing to take back';
    end if;
    if v_row.corrected_as is not null then
      raise exception 'event %: was corrected, and is published as %', p_event_id, v_row.corrected_as
        using errcode = 'SP033', column = 'event_id', hint = 'nothing takes that back; act on the copy';
    end if;
    if v_row.deleted_at <= clock_timestamp() - make_interval(hours => v_days * 24) then
      raise exception 'event %: was discarded more than % days ago, at %', p_event_id, v_days, v_row.discarded_at
        using errcode = 'SP033', column = 'event_id', hint = 'publish it again if it is still wanted';
    end if;
    return v_row.occurred_at;
  end if;

  if v_row.discarded_at is not null then
    raise exception 'event %: was discarded at %', p_event_id, v_row.discarded_at using errcode = 'SP033',
      column = 'event_id', hint = format('first: `workers events undiscard %1$s`, or: '
        'select core.outbox_undiscard(%1$L, <who>)', p_event_id);
  end if;

  if v_row.status in ('pending', 'in_flight') and exists
    (select from core.quarantined_events q where q.id = p_event_id and q.occurred_at = v_row.occurred_at) then
    if p_action = 'retry_now' then return v_row.occurred_at; end if;
    raise exception 'event %: is quarantined: its row could not be read or written', p_event_id
      using errcode = 'SP032', column = 'event_id', hint = format('remove what rejects it; then `workers events '
        'retry-now %1$s`, or: select core.outbox_retry_now(%1$L)', p_event_id);
  end if;
  if p_action = 'retry_now' then
    if v_row.status <> 'pending' then
      raise exception 'event %: is %, not pending', p_event_id, v_row.status
        using errcode = 'SP032', column = 'event_id',
              hint = case v_row.status
                when 'failed' then format('`workers events replay %1$s --to <generation>`, or: '
                  'select core.outbox_replay(%1$L, <generation>, <who>)', p_event_id)
                when 'in_flight' then 'a worker handles it; if that worker dies, the event is pending again when the '
                  'lease runs out'
                when 'relayed' then 'a broker has it for its handlers; `workers relay back` gives all such events back'
                else 'nothing is left to do' end;
    end if;
    if v_row.waiting_for is not null then
      raise exception 'event %: waits for the breaker of % to close', p_event_id, v_row.waiting_for
        using errcode = 'SP032', column = 'event_id', hint = 'it is due when that closes; `workers handlers list` '
          'says why it is open, and `workers handlers close` closes it';
    end if;
    if v_row.available_at <= clock_timestamp() then
      raise exception 'event %: is due already, since %', p_event_id, v_row.available_at
        using errcode = 'SP034', column = 'event_id',
          hint = 'see whether a live worker handles its type in its generation, and whether that is paused';
    end if;
    return v_row.occurred_at;
  end if;

  if v_row.status <> 'failed' and not (p_action = 'replay' and v_row.status = 'delivered' and coalesce(p_force, false))
    then
    raise exception 'event %: is %, not failed', p_event_id, v_row.status
      using errcode = 'SP032', column = 'event_id',
            hint = case
              when v_row.waiting_for is not null
                then format('it waits for the breaker of %s: see `workers handlers list`', v_row.waiting_for)
              when v_row.status = 'pending' and v_row.available_at > clock_timestamp()
                then format('it is due at %1$s; sooner: `workers events retry-now %2$s`, or: '
                  'select core.outbox_retry_now(%2$L)', v_row.available_at, p_event_id)
              when v_row.status = 'pending' then 'it is due, or a worker handles it'
              when v_row.status = 'in_flight'
                then format('worker %s handles it; if that worker dies, it is pending again at %s',
                  coalesce(v_row.claimed_by, 'unknown'), v_row.claimed_at + make_interval(secs => v_row.lease_seconds))
              when v_row.status = 'relayed'
                then 'a broker has it for its handlers; `workers relay back` gives all such events back'
              when p_action = 'replay' then '--force, or p_force => true, replays it for other handlers'
              else 'nothing is left to do' end;
  end if;
  return v_row.occurred_at;
end
$$;
