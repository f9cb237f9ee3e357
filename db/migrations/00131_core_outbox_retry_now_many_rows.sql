-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- one column more: it comes last, and older builds name those that they read
drop function core.outbox_retry_now_many(uuid[], text, timestamptz[]);
-- +goose StatementBegin
-- core.outbox_retry_now_many(p_event_ids, p_retried_by, p_occurred_ats) makes up to 1000 pending events due at once that wait for a later
-- time, after a failure or as they were scheduled: what core.outbox_retry_now does to one. Which are passed over: core.operated_rows. A row in a
-- worker's hands is never stamped anew: its dispatch is known by the time it was due. Returns what is due now, and whether it was tried before
-- (core.tried) or is one that its producer scheduled.
-- Refuses malformed arguments (SP030). Wakes each channel once. Writes core.outbox, core.operator_actions.
create function core.outbox_retry_now_many(p_event_ids uuid[], p_retried_by text default null, p_occurred_ats timestamptz[] default null)
returns table (event_id uuid, occurred_at timestamptz, tried boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_floor
  v_ids uuid[];
  v_ats timestamptz[];
  v_channels text[];
  v_tried boolean[];
begin
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('retry_now', p_event_ids, p_occurred_ats) r;
  with written as
    (update core.outbox o set available_at = clock_timestamp()
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at, o.channel, core.tried(o.attempts, o.last_error) as tried)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}'), coalesce(array_agg(w.channel), '{}'), coalesce(array_agg(w.tried), '{}')
  into v_ids, v_ats, v_channels, v_tried from written w;
  return query select k.id, k.occurred_at, k.tried from unnest(v_ids, v_ats, v_tried) as k(id, occurred_at, tried);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('retry_now', p_retried_by, v_ids, null, jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
  perform pg_notify(n.channel, n.id::text)
  from (select distinct on (u.channel) u.channel, u.id from unnest(v_channels, v_ids) as u(channel, id) order by u.channel) n;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_retry_now_many(uuid[], text, timestamptz[]) to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
set local role spectral_owner;
-- as it was: what it calls now goes in an earlier step
drop function core.outbox_retry_now_many(uuid[], text, timestamptz[]);
-- +goose StatementBegin
-- core.outbox_retry_now_many(p_event_ids, p_retried_by, p_occurred_ats) makes up to 1000 pending events due at once that wait for a later
-- time, after a failure or as they were scheduled: what core.outbox_retry_now does to one. Passed over is what does not wait, is
-- locked at the moment, or shares its id with another event that p_occurred_ats does not tell it from. A row in a
-- worker's hands is never stamped anew: its dispatch is known by the time it was due. Returns what is due now.
-- Refuses malformed arguments (SP030). Wakes each channel once. Writes core.outbox, core.operator_actions.
create function core.outbox_retry_now_many(p_event_ids uuid[], p_retried_by text default null, p_occurred_ats timestamptz[] default null)
returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_floor
  v_ids uuid[] := '{}';
  v_channels text[] := '{}';
  v_id uuid;
  v_at timestamptz;
  v_ats timestamptz[] := '{}';
  v_channel text;
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  for v_id, v_at, v_channel in
    select o.id, o.occurred_at, o.channel
    from (select distinct g.id, g.occurred_at from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at) order by 1, 2) g
    -- row by row, so that no plan made for an empty outbox begins there
    cross join lateral
      (select o.id, o.occurred_at, o.channel from core.outbox o
       where o.id = g.id
         and (o.occurred_at = g.occurred_at or g.occurred_at is null
              and not exists (select from core.outbox t where t.id = o.id and t.occurred_at <> o.occurred_at))
         -- a CASE hides the condition of the partial index from plans made when nothing was pending
         and case when o.status = 'pending' then o.deleted_at is null else false end and o.available_at > clock_timestamp()
       for update of o skip locked) o
  loop
    v_ids := v_ids || v_id;
    v_ats := v_ats || v_at;
    v_channels := v_channels || v_channel;
  end loop;
  with written as
    (update core.outbox o set available_at = clock_timestamp()
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, for the same reason
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at, o.channel)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}'), coalesce(array_agg(w.channel), '{}')
  into v_ids, v_ats, v_channels from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('retry_now', p_retried_by, v_ids, null, jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
  for v_channel, v_id in select distinct on (n.channel) n.channel, n.id from unnest(v_channels, v_ids) as n(channel, id) order by n.channel loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_retry_now_many(uuid[], text, timestamptz[]) to spectral_operator;
reset role;
