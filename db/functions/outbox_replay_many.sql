-- core.outbox_replay_many(p_event_ids, p_new_generation, p_replayed_by, p_occurred_ats, p_settled_before, p_force,
-- p_run, p_skip) replays up to 1000 failed events: what core.outbox_replay does to one; with p_force delivered events
-- as well. Which are passed over: core.operated_rows. Returns what was replayed, and the cycle of it that ended.
-- P_replayed_by may be null: then it is the login.
--
-- A handler that had begun with an event and has not handled it (core.begun_handlers) does not run again if it is in
-- p_skip, or not in p_run and its policy is skip: its key is written to core.event_handled with the outcome skipped.
-- Where its policy is ask, it must be in one of the two (SP037).
--
-- Refuses malformed arguments (SP030), a generation that is unknown or retired (SP019). Wakes each channel once. Writes
-- core.outbox, core.event_handled, core.operator_actions; reads core.deployments, core.event_types and what
-- core.begun_handlers reads.
create function core.outbox_replay_many(p_event_ids uuid[], p_new_generation bigint, p_replayed_by text default null,
  p_occurred_ats timestamptz[] default null, p_settled_before timestamptz default null,
  p_force boolean default false, p_run text[] default '{}', p_skip text[] default '{}')
returns table (event_id uuid, occurred_at timestamptz, cycle integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the time is read: core.outbox_watermark
  v_ids uuid[];
  v_ats timestamptz[];
  v_channels text[];
  v_cycles integer[];
  v_ask text;
begin
  perform core.generation_open(p_new_generation);
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('replay', p_event_ids, p_occurred_ats, p_settled_before, p_force, p_new_generation) r;
  select string_agg(distinct b.handler_name, ', ') into v_ask
  from core.begun_handlers(v_ids, v_ats, p_new_generation) b
  where b.on_replay = 'ask' and b.handler_name <> all (p_run || p_skip);
  if v_ask is not null then
    raise exception 'handler %: had begun, and acts outside its transaction: say whether it runs again', v_ask
      using errcode = 'SP037', column = 'handler', hint = 'pass --run or --skip with its name (p_run, p_skip)';
  end if;
  insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class,
    outcome, skipped_by)
  select b.handler_name, o.idempotency_key, o.id, o.event_type, o.workspace_id, o.content_class, 'skipped',
    coalesce(btrim(p_replayed_by), session_user)
  from core.begun_handlers(v_ids, v_ats, p_new_generation) b
  cross join lateral (select o.* from core.outbox o where o.id = b.id and o.occurred_at = b.occurred_at offset 0) o
  where b.handler_name = any (p_skip) or b.on_replay = 'skip' and b.handler_name <> all (p_run)
  order by 1, 2
  on conflict do nothing;
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
         claimed_by = null, lease_handler = null, delivered_at = null, waiting_for = null,
         handler_failures = '{}', crashes = 0,
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
      jsonb_build_object('asked', cardinality(p_event_ids), 'forced', nullif(coalesce(p_force, false), false),
        'run', nullif(to_jsonb(p_run), '[]'), 'skip', nullif(to_jsonb(p_skip), '[]')));
  end if;
  perform pg_notify(n.channel, n.id::text)
  from (select distinct on (u.channel) u.channel, u.id from unnest(v_channels, v_ids) as u(channel, id)
    order by u.channel) n;
end
$$;
