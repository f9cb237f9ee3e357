-- core.operated_rows(p_action, p_event_ids, p_occurred_ats, p_settled_before, p_force, p_generation) locks those events
-- of a bulk call that can be replayed, discarded, undiscarded or retried now, and returns them in the order of their
-- ids. It passes over an event whose state does not allow the action; one that failed, or was delivered, at or after
-- p_settled_before; one that another session has locked (two operators never wait for each other, and each event is
-- acted on once); and one that shares its id with another, unless p_occurred_ats, one for each id, tells them apart.
-- For a replay it passes over types that no handler in p_generation consumes, and delivered events without p_force.
-- Refuses malformed arguments (SP030). Locks rows of core.outbox; reads core.retention_policies, core.event_types,
-- core.quarantined_events.
create function core.operated_rows(p_action text, p_event_ids uuid[], p_occurred_ats timestamptz[],
  p_settled_before timestamptz default null, p_force boolean default false,
  p_generation bigint default null) returns table (id uuid, occurred_at timestamptz)
language plpgsql volatile
-- a plan that knew the action would know the conditions of partial indexes, too: one that was made when there was
-- nothing in them would read them from end to end
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  return query
    select o.id, o.occurred_at
    from (select distinct g.id, g.occurred_at
      from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at) order by 1, 2) g
    -- row by row, so that no plan made for an empty outbox begins there
    cross join lateral
      (select o.id, o.occurred_at from core.outbox o where o.id = g.id
         and (o.occurred_at = g.occurred_at or g.occurred_at is null
              and not exists (select from core.outbox t where t.id = o.id and t.occurred_at <> o.occurred_at))
         and case p_action
               when 'replay' then (o.status = 'failed' or o.status = 'delivered' and p_force) and o.deleted_at is null
                 -- one call in several is over once each event has been through it, although by force what is delivered
                 -- again is delivered
                 and coalesce(case when o.status = 'failed' then o.claimed_at
                   else o.delivered_at end < p_settled_before, true)
                 and not core.unconsumed(o.event_type, o.event_version, p_generation)
               when 'discard' then o.status = 'failed' and o.deleted_at is null
                 and coalesce(o.claimed_at < p_settled_before, true)
               when 'undiscard' then o.discarded_at is not null
                 and not coalesce(o.failure_history -> -1 ? 'corrected_as', false)
                 and o.deleted_at > clock_timestamp() - (select make_interval(hours => p.tombstoned_grace_days * 24)
                 from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*')
               when 'retry_now' then o.deleted_at is null
                 and (o.status = 'pending' and o.available_at > clock_timestamp() and o.waiting_for is null
                 or o.status in ('pending', 'in_flight')
                   and exists (select from core.quarantined_events q
                     where q.id = o.id and q.occurred_at = o.occurred_at)) end for update of o skip locked) o;
end
$$;
