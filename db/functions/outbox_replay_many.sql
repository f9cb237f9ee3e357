-- core.outbox_replay_many(p_event_ids, p_new_generation, p_replayed_by, p_occurred_ats, p_settled_before, p_force)
-- replays up to 1000 failed events: what core.outbox_replay does to one; with p_force delivered events as well. Which
-- are passed over: core.operated_rows. Returns what was replayed, and the cycle of it that ended. P_replayed_by may be
-- null: then it is the login.
--
-- Refuses malformed arguments (SP030), a generation that is unknown or retired (SP019). Wakes each channel once. Writes
-- core.outbox, core.operator_actions; reads core.deployments, core.event_types.
create function core.outbox_replay_many(p_event_ids uuid[], p_new_generation bigint, p_replayed_by text default null,
  p_occurred_ats timestamptz[] default null, p_settled_before timestamptz default null,
  p_force boolean default false) returns table (event_id uuid, occurred_at timestamptz, cycle integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_ids uuid[];
  v_ats timestamptz[];
  v_channels text[];
  v_cycles integer[];
begin
  perform core.generation_open(p_new_generation);
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('replay', p_event_ids, p_occurred_ats, p_settled_before, p_force, p_new_generation) r;
  with written as
    (update core.outbox o set status = 'pending', generation = p_new_generation, available_at = clock_timestamp(),
         -- the class is kept; a channel that says none gets that of the type
         channel = 'outbox_gen_' || p_new_generation || coalesce(case
           when o.channel ~ '^outbox_gen_[0-9]+$' then ''
           when o.channel ~ '^outbox_gen_[0-9]+_[a-z][a-z0-9_]{0,29}$'
             then substring(o.channel from '^outbox_gen_[0-9]+(_.*)$')
           else (select '_' || t.class from core.event_types t where t.event_type = o.event_type
             and t.event_version = o.event_version)
         end, ''),
         attempts = 0, last_error = null, first_failed_at = null, claimed_at = null, claim_token = null,
         claimed_by = null, lease_handler = null, delivered_at = null, handler_failures = '{}', crashes = 0,
         failure_history = core.failure_history_with(o.failure_history, jsonb_build_object(
           'cycle', core.prior_replays(o.failure_history) + 1, 'attempts', o.attempts, 'last_error', o.last_error,
           'first_failed_at', o.first_failed_at, 'failed_at', case when o.status = 'failed' then o.claimed_at end,
           'replayed_at', clock_timestamp(), 'replayed_by', coalesce(btrim(p_replayed_by), session_user))
           || case when o.status = 'delivered' then jsonb_build_object('delivered_at', o.delivered_at) else '{}' end)
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at, o.channel, (o.failure_history #>> '{-1,cycle}')::integer as cycle)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}'),
    coalesce(array_agg(w.channel), '{}'), coalesce(array_agg(w.cycle), '{}')
  into v_ids, v_ats, v_channels, v_cycles from written w;
  return query select k.id, k.occurred_at, k.cycle from unnest(v_ids, v_ats, v_cycles) as k(id, occurred_at, cycle);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('replay', p_replayed_by, v_ids, p_new_generation,
      jsonb_build_object('asked', cardinality(p_event_ids), 'forced', nullif(coalesce(p_force, false), false)));
  end if;
  perform pg_notify(n.channel, n.id::text)
  from (select distinct on (u.channel) u.channel, u.id from unnest(v_channels, v_ids) as u(channel, id)
    order by u.channel) n;
end
$$;
