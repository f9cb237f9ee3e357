-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_discard_many(p_event_ids, p_discarded_by, p_reason, p_occurred_ats, p_failed_before) discards up to 1000 failed events: what
-- core.outbox_discard does to one. Which are passed over: core.operated_rows. Returns what was discarded.
-- P_discarded_by may be null: then it is the login.
-- Refuses malformed arguments (SP030). Writes core.outbox, core.operator_actions.
create or replace function core.outbox_discard_many(
  p_event_ids uuid[], p_discarded_by text, p_reason text default null, p_occurred_ats timestamptz[] default null, p_failed_before timestamptz default null)
returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_ids uuid[];
  v_ats timestamptz[];
  v_now constant timestamptz := clock_timestamp();
begin
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.occurred_at), '{}') into v_ids, v_ats
  from core.operated_rows('discard', p_event_ids, p_occurred_ats, p_failed_before) r;
  with written as
    (update core.outbox o
     set deleted_at = v_now, discarded_at = v_now, undiscarded_at = null,
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('discarded_at', v_now, 'discarded_by', coalesce(btrim(p_discarded_by), session_user), 'reason', btrim(p_reason)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, so that no plan begins at the outbox
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}')
  into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('discard', p_discarded_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids), 'reason', btrim(p_reason)));
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
-- core.outbox_discard_many(p_event_ids, p_discarded_by, p_reason, p_occurred_ats, p_failed_before) discards up to 1000 failed events: what
-- core.outbox_discard does to one. Which are passed over, and the times, as in core.outbox_replay_many. Returns what was discarded.
-- P_discarded_by may be null: then it is the login.
-- Refuses malformed arguments (SP030). Writes core.outbox, core.operator_actions.
create or replace function core.outbox_discard_many(
  p_event_ids uuid[], p_discarded_by text, p_reason text default null, p_occurred_ats timestamptz[] default null, p_failed_before timestamptz default null)
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
  v_now constant timestamptz := clock_timestamp();
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  if btrim(p_reason) = '' or octet_length(p_reason) > 1024 then
    raise exception 'reason: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_reason)
      using errcode = 'SP030', column = 'reason', hint = 'say why, or pass null';
  end if;
  for v_id, v_at in
    select o.id, o.occurred_at
    from (select distinct g.id, g.occurred_at from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at) order by 1, 2) g
    -- row by row, so that no plan made for an empty outbox begins there
    cross join lateral
      (select o.id, o.occurred_at from core.outbox o
       where o.id = g.id
         and (o.occurred_at = g.occurred_at or g.occurred_at is null
              and not exists (select from core.outbox t where t.id = o.id and t.occurred_at <> o.occurred_at))
         -- a CASE hides the conditions of partial indexes from plans made when there was nothing in them
         and case when o.status = 'failed' then o.deleted_at is null else false end
         and (p_failed_before is null or o.claimed_at is null or o.claimed_at < p_failed_before)
       for update of o skip locked) o
  loop
    v_ids := v_ids || v_id;
    v_ats := v_ats || v_at;
  end loop;
  with written as
    (update core.outbox o
     set deleted_at = v_now, discarded_at = v_now, undiscarded_at = null,
         failure_history = core.failure_history_with(o.failure_history,
           jsonb_build_object('discarded_at', v_now, 'discarded_by', coalesce(btrim(p_discarded_by), session_user), 'reason', btrim(p_reason)))
     from unnest(v_ids, v_ats) as k(id, occurred_at)
     -- the ids as an array, too, for the same reason
     where o.id = any (v_ids) and o.id = k.id and o.occurred_at = k.occurred_at
     returning o.id, o.occurred_at)
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.occurred_at), '{}')
  into v_ids, v_ats from written w;
  return query select k.id, k.occurred_at from unnest(v_ids, v_ats) as k(id, occurred_at);
  if cardinality(v_ids) > 0 then
    perform core.operator_action('discard', p_discarded_by, v_ids, null,
      jsonb_build_object('asked', cardinality(p_event_ids), 'reason', btrim(p_reason)));
  end if;
end
$$;
-- +goose StatementEnd
reset role;
