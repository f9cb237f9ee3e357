-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_undiscard_many(p_event_ids, p_undiscarded_by, p_occurred_ats) takes back up to 1000 discards: what core.outbox_undiscard does to one.
-- Which are passed over: core.operated_rows. Returns what is failed again.
-- P_undiscarded_by may be null: then it is the login.
-- Refuses malformed arguments (SP030). Writes core.outbox, core.operator_actions; reads core.retention_policies.
create or replace function core.outbox_undiscard_many(p_event_ids uuid[], p_undiscarded_by text, p_occurred_ats timestamptz[] default null)
returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_ids uuid[];
  v_ats timestamptz[];
begin
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('undiscard', p_event_ids, p_occurred_ats) r;
  with written as
    (update core.outbox o
     set deleted_at = null, discarded_at = null, undiscarded_at = clock_timestamp(),
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('undiscarded_at', clock_timestamp(), 'undiscarded_by', coalesce(btrim(p_undiscarded_by), session_user)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}')
  into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('undiscard', p_undiscarded_by, v_ids, null, jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
set local role spectral_owner;
-- as it was: what it calls now goes in an earlier step
-- +goose StatementBegin
-- core.outbox_undiscard_many(p_event_ids, p_undiscarded_by, p_occurred_ats) takes back up to 1000 discards: what core.outbox_undiscard does to one.
-- Which are passed over, and the times, as in core.outbox_replay_many. Returns what is failed again.
-- P_undiscarded_by may be null: then it is the login.
-- Refuses malformed arguments (SP030). Writes core.outbox, core.operator_actions; reads core.retention_policies.
create or replace function core.outbox_undiscard_many(p_event_ids uuid[], p_undiscarded_by text, p_occurred_ats timestamptz[] default null)
returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_ids uuid[] := '{}';
  v_id uuid;
  v_at timestamptz;
  v_ats timestamptz[] := '{}';
  v_grace constant interval := (select make_interval(hours => p.tombstoned_grace_days * 24)
    from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*');
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  for v_id, v_at in
    select o.id, o.occurred_at
    from (select distinct g.id, g.occurred_at from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at) order by 1, 2) g
    -- row by row, so that no plan made for an empty outbox begins there
    cross join lateral
      (select o.id, o.occurred_at from core.outbox o
       where o.id = g.id
         and (o.occurred_at = g.occurred_at or g.occurred_at is null
              and not exists (select from core.outbox t where t.id = o.id and t.occurred_at <> o.occurred_at))
         and case when o.discarded_at is not null then o.deleted_at > clock_timestamp() - v_grace else false end
       for update of o skip locked) o
  loop
    v_ids := v_ids || v_id;
    v_ats := v_ats || v_at;
  end loop;
  with written as
    (update core.outbox o
     set deleted_at = null, discarded_at = null, undiscarded_at = clock_timestamp(),
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('undiscarded_at', clock_timestamp(), 'undiscarded_by', coalesce(btrim(p_undiscarded_by), session_user)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, for the same reason
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}')
  into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('undiscard', p_undiscarded_by, v_ids, null, jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
end
$$;
-- +goose StatementEnd
reset role;
