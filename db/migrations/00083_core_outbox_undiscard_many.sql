-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_undiscard_many(p_event_ids, p_undiscarded_by, p_occurred_ats) takes back up to 1000 discards: what core.outbox_undiscard does to one.
-- Which are passed over, and the times, as in core.outbox_replay_many. Returns what is failed again.
-- Refuses malformed arguments (SP030). Writes core.outbox, core.operator_actions.
create function core.outbox_undiscard_many(p_event_ids uuid[], p_undiscarded_by text, p_occurred_ats timestamptz[] default null)
returns table (event_id uuid, occurred_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_ids uuid[] := '{}';
begin
  perform core.operated_ids(p_event_ids, p_occurred_ats);
  for event_id, occurred_at in
    with given as materialized
      (select distinct g.id, g.occurred_at from unnest(p_event_ids, coalesce(p_occurred_ats, '{}')) as g(id, occurred_at)),
    locked as materialized
      (select o.id, o.occurred_at from given g join core.outbox o on o.id = g.id
       where o.id = any (p_event_ids)
         and (o.occurred_at = g.occurred_at or g.occurred_at is null
              and not exists (select from core.outbox t where t.id = o.id and t.occurred_at <> o.occurred_at))
         and case when o.discarded_at is not null then o.deleted_at > clock_timestamp() - interval '7 days' else false end
       order by o.id, o.occurred_at
       for update of o skip locked)
    update core.outbox o
    set deleted_at = null, discarded_at = null,
        failure_history = core.failure_history_with(o.failure_history,
          jsonb_build_object('undiscarded_at', clock_timestamp(), 'undiscarded_by', btrim(p_undiscarded_by)))
    from locked l
    where o.id = any (p_event_ids) and o.id = l.id and o.occurred_at = l.occurred_at
    returning o.id, o.occurred_at
  loop
    v_ids := v_ids || event_id;
    return next;
  end loop;
  if cardinality(v_ids) > 0 then
    perform core.operator_action('undiscard', p_undiscarded_by, v_ids, null, jsonb_build_object('asked', cardinality(p_event_ids)));
  end if;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_undiscard_many(uuid[], text, timestamptz[]) to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.outbox_undiscard_many(uuid[], text, timestamptz[]);
