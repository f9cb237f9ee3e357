-- core.outbox_reap(p_limit, p_after_id, p_after_occurred_at) re-pends up to p_limit rows whose lease has
-- run out, of all generations, beginning behind the given row in the order of id and occurred_at, and
-- wakes the listeners. Returns one line for each row, in that order: why, and whether it was reaped. Not
-- reaped, with the error for a reason, is one that cannot be written; a row that somebody has
-- locked, and may be settling, is passed over. Fewer than p_limit lines: there is no more behind them.
--
-- One caller leads at a time, the others get nothing. Leading is a lock of the transaction that reaps:
-- whoever loses the one has lost the other.
--
-- The reason is in last_error and, under reaped_at, in failure_history (core.failure_history_with). The attempt stays counted. The
-- handler at work is charged with a failure where it is the likeliest to have ended the worker: nothing
-- else that the worker had in flight, and lost with it, has seen as many workers die, or this is the tenth. A server that was
-- started since explains it, and is nobody's death. A row that has no room for all that is re-pended without charge and memory. Writes
-- core.outbox, core.reaped_leases.
create function core.outbox_reap(p_limit integer default 50, p_after_id uuid default null, p_after_occurred_at timestamptz default null)
returns table (event_id uuid, occurred_at timestamptz, event_type text, generation bigint, attempts integer, charged boolean,
  reaped boolean, reason text)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_row record;
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_channel text;
  v_xid xid8;
  v_failures integer;
  v_message text;
  v_error text;
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    raise exception 'p_limit %: must be from 1 to 1000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  if not core.lead('reap') then
    return;
  end if;
  v_xid := pg_current_xact_id(); -- before the time is read: core.outbox_floor
  for v_row in
    with held as materialized
      (select o.claimed_by, o.crashes, count(*) as rows from core.outbox o
       where o.status = 'in_flight' and o.deleted_at is null and o.claimed_by is not null
       group by o.claimed_by, o.crashes)
    select o.id, o.occurred_at, o.event_type, o.generation, o.channel, o.attempts, o.crashes, o.claim_token, o.claimed_by,
           o.claimed_at, o.lease_seconds, o.lease_handler, o.handler_failures,
           core.server_restarted(o.claimed_at) as restarted,
           o.crashes >= 9 or not exists (select from held h
             where h.claimed_by = o.claimed_by and h.crashes >= o.crashes and (h.crashes > o.crashes or h.rows > 1))
             and not exists (select from core.reaped_leases r
               where r.claimed_by = o.claimed_by and r.reaped_at > o.claimed_at and r.crashes >= o.crashes) as prime
    from core.outbox o
    where o.status = 'in_flight' and o.deleted_at is null
      and not core.lease_holds(coalesce(o.claimed_at, '-infinity'), o.lease_seconds)
      and (p_after_id is null or (o.id, o.occurred_at) > (p_after_id, coalesce(p_after_occurred_at, '-infinity')))
    order by o.id, o.occurred_at
    limit p_limit
    for update of o skip locked
  loop
    event_id := v_row.id;
    occurred_at := v_row.occurred_at;
    event_type := v_row.event_type;
    generation := v_row.generation;
    attempts := v_row.attempts;
    charged := v_row.prime and v_row.lease_handler is not null and v_row.restarted is not true;
    v_message := format('the lease of %s s ran out: worker %s did not renew it after %s: killed, frozen or cut off%s',
      v_row.lease_seconds,
      coalesce(v_row.claimed_by, 'unknown'),
      to_char(v_row.claimed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      case when v_row.restarted then '; not counted against the handler: the server was started since'
           when charged or v_row.lease_handler is null then '' else '; not counted against the handler: the worker had other events in flight' end);
    -- that fits into last_error, whatever its letters
    reason := left(format('LeaseExpired: %s: %s', coalesce(v_row.lease_handler, 'outbox'), v_message), 2000);
    -- in a block of its own: a row that cannot be written must not keep those behind it
    <<trying>>
    for v_bare in 0..1 loop begin
      v_failures := case when jsonb_typeof(v_row.handler_failures #> array[v_row.lease_handler, 'failures']) = 'number'
                         then least(greatest((v_row.handler_failures #>> array[v_row.lease_handler, 'failures'])::numeric, 0), 1000000)::integer
                         else 0 end;
      update core.outbox o
      set status = 'pending', claim_token = null, claimed_by = null, lease_handler = null,
          available_at = clock_timestamp(), crashes = o.crashes + case when v_row.restarted then 0 else 1 end, last_error = reason,
          first_failed_at = coalesce(o.first_failed_at, clock_timestamp()),
          handler_failures = case when not charged or v_bare = 1 then o.handler_failures
            else jsonb_set(o.handler_failures, array[v_row.lease_handler],
                   jsonb_build_object('failures', v_failures + 1, 'class', 'LeaseExpired', 'error', left(v_message, 1000))) end,
          failure_history = case when v_bare = 1 then o.failure_history else core.failure_history_with(o.failure_history,
            jsonb_build_object('reaped_at', clock_timestamp(), 'reason', reason, 'attempts', o.attempts,
              'handler', o.lease_handler, 'claimed_by', o.claimed_by, 'claimed_at', o.claimed_at)) end
      where o.id = v_row.id and o.occurred_at = v_row.occurred_at and o.claim_token = v_row.claim_token;
      if not found then
        raise exception 'a trigger keeps the row as it is';
      end if;
      insert into core.reaped_leases as r (claimed_by, crashes, reaped_at)
      select v_row.claimed_by, v_row.crashes, clock_timestamp() where v_row.claimed_by is not null and v_bare = 0
      on conflict (claimed_by) do update
      set reaped_at = excluded.reaped_at,
          crashes = case when r.reaped_at > v_row.claimed_at then greatest(r.crashes, excluded.crashes) else excluded.crashes end;
      reaped := true;
      charged := charged and v_bare = 0;
      v_ids := v_ids || v_row.id;
      v_channels := v_channels || v_row.channel;
      exit trying;
    exception when others then
      reaped := false;
      v_error := sqlstate || ': ' || sqlerrm;
    end; end loop;
    if not reaped then
      charged := false;
      reason := v_error;
    end if;
    return next;
  end loop;
  for v_channel, v_id in select distinct on (n.channel) n.channel, n.id from unnest(v_channels, v_ids) as n(channel, id) order by n.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
  -- no lease is longer than a day
  delete from core.reaped_leases r where r.reaped_at < clock_timestamp() - interval '2 days';
end
$$;
grant execute on function core.outbox_reap(integer, uuid, timestamptz) to spectral_worker;
