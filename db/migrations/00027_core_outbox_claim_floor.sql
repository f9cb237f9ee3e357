-- Claims that do not walk past what was settled long ago, and leave a dead worker's rows alone
-- (docs/decisions/0007 and 0008). Plans are kept for a session, also those made when the table was
-- empty or not analyzed: the settings leave the planner the index and nothing else. They hold for what
-- the functions call as well, and make a plan that has no index to use look so dear that it would be
-- compiled, for half a second, by JIT: which is off.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_floor(p_generation, p_event_type, p_floor) measures how far the lower bound of
-- pending rows can rise. Returns the oldest available_at from p_floor on that is pending, locked
-- ones included (null: none), and the lowest transaction id still running, both of one snapshot;
-- and a mark: a time, and a transaction id taken after it. Once that id is not above the lowest
-- running one, every row stamped before the mark's time is visible or gone, and the floor may rise to
-- that time, or to the oldest pending one if that is less. Not pg_snapshot_xmax: ids that are
-- given out already may lie above it. Reads core.outbox.
create function core.outbox_floor(p_generation bigint, p_event_type text, p_floor timestamptz)
returns table (oldest timestamptz, lowest_running bigint, mark_at timestamptz, mark_id bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'core.outbox_floor: this transaction took its id before the time could be read'
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  mark_at := clock_timestamp();
  mark_id := pg_current_xact_id()::text::bigint;
  select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
         (select o.available_at from core.outbox o
          where o.generation = p_generation and o.event_type = p_event_type
            and o.status = 'pending' and o.deleted_at is null and o.available_at >= p_floor
          order by o.available_at limit 1)
  into lowest_running, oldest;
  return next;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_floor(bigint, text, timestamptz) to spectral_worker;

-- +goose StatementBegin
-- core.outbox_claim(p_generation, p_event_type, p_limit, p_floor, p_worker, p_crashed) claims up to
-- p_limit due rows of one type and generation for the caller's transaction (row-locked mode): they
-- stay pending under its row locks, and are free again when it ends. With p_crashed only rows that
-- a worker died of, otherwise only others. Rows that others hold are skipped; so are those that a
-- worker, other than p_worker, had in hand when its session ended. Rows available before p_floor
-- are not looked for. No more than 16 MiB of payload and one row: they are all in memory at once.
-- Locks core.outbox; reads core.workers, core.claim_journal.
create function core.outbox_claim(
  p_generation bigint, p_event_type text, p_limit integer, p_floor timestamptz, p_worker uuid, p_crashed boolean)
returns table (
  event_id uuid, event_type text, event_version integer, occurred_at timestamptz, source text, target text,
  content_class text, workspace_id uuid, payload jsonb, idempotency_key text, trace_context text,
  attempts integer, available_at timestamptz, handler_failures jsonb, crashes integer)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
#variable_conflict use_column
declare
  v_suspects uuid[];
  v_size bigint;
  v_bytes bigint := 0;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'p_limit %: must be from 1 to 10000', p_limit using errcode = 'invalid_parameter_value';
  end if;
  v_suspects := core.claim_suspects(p_worker);
  if p_crashed then
    return query
      select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
             o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes
      from core.outbox o
      where o.generation = p_generation and o.event_type = p_event_type
        and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
        and o.available_at <= statement_timestamp()
        and (v_suspects is null or o.id <> all (v_suspects))
      order by o.available_at
      limit p_limit
      for update skip locked;
    return;
  end if;
  -- a loop fetches, and so locks, little more than it returns
  for event_id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
      idempotency_key, trace_context, attempts, available_at, handler_failures, crashes, v_size in
    select o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.workspace_id,
           o.payload, o.idempotency_key, o.trace_context, o.attempts, o.available_at, o.handler_failures, o.crashes,
           case when pg_column_compression(o.payload) is null then pg_column_size(o.payload) else octet_length(o.payload::text) end
    from core.outbox o
    where o.generation = p_generation and o.event_type = p_event_type
      and o.status = 'pending' and o.deleted_at is null
      and o.available_at >= p_floor and o.available_at <= statement_timestamp() and o.crashes = 0
      and (v_suspects is null or o.id <> all (v_suspects))
    order by o.available_at
    limit p_limit
    for update skip locked
  loop
    return next;
    v_bytes := v_bytes + v_size;
    exit when v_bytes >= 16777216;
  end loop;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_claim(bigint, text, integer, timestamptz, uuid, boolean) to spectral_worker;

-- +goose StatementBegin
-- core.outbox_look(p_generation, p_event_types, p_floors) is the one cheap look after a wake-up,
-- and the poll: for each type with pending rows available from its floor on, the time of the
-- oldest due one (null: none), and in how many seconds the next one that is not yet due will be
-- (null: none). Seconds, not times, so that a worker's own clock never matters. crashed: a row is
-- due that a worker died of. Takes no lock: a row that another worker holds counts as due. Reads
-- core.outbox.
create function core.outbox_look(p_generation bigint, p_event_types text[], p_floors timestamptz[])
returns table (event_type text, oldest_due timestamptz, next_in double precision, crashed boolean)
language sql stable security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
  select t.event_type,
         (select o.available_at from core.outbox o
          where o.generation = p_generation and o.event_type = t.event_type
            and o.status = 'pending' and o.deleted_at is null
            and o.available_at >= t.floor and o.available_at <= statement_timestamp()
          order by o.available_at limit 1),
         extract(epoch from
           (select o.available_at from core.outbox o
            where o.generation = p_generation and o.event_type = t.event_type
              and o.status = 'pending' and o.deleted_at is null
              and o.available_at > statement_timestamp()
            order by o.available_at limit 1) - statement_timestamp())::double precision,
         exists (select from core.outbox o
                 where o.generation = p_generation and o.event_type = t.event_type
                   and o.status = 'pending' and o.deleted_at is null and o.crashes > 0
                   and o.available_at <= statement_timestamp())
  from unnest(p_event_types, p_floors) as t(event_type, floor)
$$;
-- +goose StatementEnd
grant execute on function core.outbox_look(bigint, text[], timestamptz[]) to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.outbox_look(bigint, text[], timestamptz[]);
drop function core.outbox_claim(bigint, text, integer, timestamptz, uuid, boolean);
drop function core.outbox_floor(bigint, text, timestamptz);
