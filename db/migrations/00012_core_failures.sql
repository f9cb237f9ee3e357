-- What failed and why: handlers and their effects, failed attempts, groups of errors (docs/decisions/0022).
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- The handlers of each generation. Workers write them when they start.
create table core.handlers (
  generation bigint not null,
  handler_name text not null,
  event_type text not null,
  effect text null,
  on_replay text not null default 'allow',
  registered_at timestamptz not null default clock_timestamp(),
  constraint handlers_pk primary key (generation, event_type, handler_name),
  constraint handlers_on_replay_known check (on_replay in ('allow', 'skip', 'ask'))
);
comment on table core.handlers is 'The handlers that workers of a generation have registered.';
comment on column core.handlers.effect is 'what it does outside its transaction, as in "sends mail"; null: nothing';
comment on column core.handlers.on_replay is
  'what a replay does with it where it had begun and had not handled the event: allow, skip or ask';
grant select on core.handlers to spectral_operator;

-- The failed attempts of each event: the latest ten of a handler. They go with the event.
create table core.failed_attempts (
  event_id uuid not null,
  occurred_at timestamptz not null,
  handler_name text not null,
  attempt integer not null,
  cycle integer not null,
  started_at timestamptz not null,
  duration_ms bigint not null,
  worker text not null,
  error_class text not null,
  error text not null,
  stack text null,
  trace_id text null,
  group_id text not null,
  constraint failed_attempts_pk primary key (event_id, occurred_at, handler_name, attempt)
);
comment on table core.failed_attempts is 'Failed attempts of handlers: the latest ten of each handler and event.';
comment on column core.failed_attempts.cycle is 'how often the event had been replayed';
comment on column core.failed_attempts.group_id is 'of core.error_groups';
grant select on core.failed_attempts to spectral_operator;

-- Failures that look the same but for ids, numbers and quoted text.
create table core.error_groups (
  group_id text not null,
  handler_name text not null,
  error_class text not null,
  message text not null,
  first_seen timestamptz not null default clock_timestamp(),
  first_generation bigint not null,
  last_seen timestamptz not null default clock_timestamp(),
  note text null,
  noted_by text null,
  muted_until timestamptz null,
  constraint error_groups_pk primary key (group_id)
);
comment on table core.error_groups is 'Failures of one handler and error class whose messages are alike.';
comment on column core.error_groups.message is 'without ids, numbers and quoted text';
comment on column core.error_groups.last_seen is 'to the minute';
comment on column core.error_groups.muted_until is 'until then it is left out of lists and warnings';
grant select on core.error_groups to spectral_operator;

-- +goose StatementBegin
create function core.error_group_seen(p_group text, p_handler text, p_class text, p_message text,
  p_generation bigint) returns void language plpgsql volatile as $$
begin
  insert into core.error_groups as g (group_id, handler_name, error_class, message, first_generation)
  select left(p_group, 64), case when p_group = p_class then 'outbox' else left(p_handler, 256) end,
    left(p_class, 256), left(p_message, 1000), p_generation
  where not exists (select from core.error_groups k
    where k.group_id = left(p_group, 64) and k.last_seen > clock_timestamp() - interval '1 minute')
  on conflict (group_id) do update set last_seen = clock_timestamp();
end
$$;
create function core.failed_attempts_add(p_event_id uuid, p_occurred_at timestamptz, p_worker text,
  p_attempts jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
declare
  v_event record;
  v_a record;
  v_attempt integer;
begin
  select o.generation, core.prior_replays(o.failure_history) as cycle into v_event from core.outbox o
  where o.id = p_event_id and o.occurred_at = p_occurred_at;
  if not found then return; end if;
  for v_a in
    select a.* from jsonb_to_recordset(p_attempts) as a(handler_name text, started_ago double precision,
      duration_ms bigint, error_class text, error text, stack text, trace_id text, group_id text, message text)
    order by a.group_id
  loop
    perform core.error_group_seen(v_a.group_id, v_a.handler_name, v_a.error_class, v_a.message, v_event.generation);
    v_attempt := coalesce((select max(f.attempt) from core.failed_attempts f where f.event_id = p_event_id
      and f.occurred_at = p_occurred_at and f.handler_name = v_a.handler_name), 0) + 1;
    insert into core.failed_attempts (event_id, occurred_at, handler_name, attempt, cycle, started_at, duration_ms,
      worker, error_class, error, stack, trace_id, group_id)
    values (p_event_id, p_occurred_at, v_a.handler_name, v_attempt, v_event.cycle,
      clock_timestamp() - make_interval(secs => least(greatest(v_a.started_ago, 0), 1e6)), v_a.duration_ms,
      left(p_worker, 256), left(v_a.error_class, 256), core.error_text(v_a.error), left(v_a.stack, 4096),
      left(v_a.trace_id, 64), left(v_a.group_id, 64))
    on conflict do nothing;
    delete from core.failed_attempts f where f.event_id = p_event_id and f.occurred_at = p_occurred_at
      and f.handler_name = v_a.handler_name and f.attempt <= v_attempt - 10;
  end loop;
end
$$;
create function core.failed_by_sql(p_event_id uuid, p_occurred_at timestamptz, p_class text, p_reason text,
  p_handlers text[], p_worker text, p_started_at timestamptz) returns jsonb
language plpgsql volatile as $$
declare
  v_message constant text := case p_class
    when 'RowFault' then 'the row cannot be read or written'
    when 'WorkerDied' then 'the worker ended, froze or lost its connection'
    else 'the lease ran out' end;
  v_ago constant double precision := case
    when isfinite(p_started_at) then extract(epoch from clock_timestamp() - p_started_at) else 0 end;
begin
  perform core.failed_attempts_add(p_event_id, p_occurred_at, coalesce(p_worker, ''), jsonb_agg(jsonb_build_object(
    'handler_name', h.name, 'started_ago', v_ago, 'duration_ms', (least(v_ago, 1e9) * 1000)::bigint,
    'error_class', p_class, 'error', p_reason, 'group_id', p_class, 'message', v_message)))
  from unnest(case when cardinality(p_handlers) > 0 then p_handlers else array['outbox'] end) as h(name);
  return jsonb_build_object('outbox', jsonb_build_object('failures', 1, 'parked', true, 'class', p_class,
    'error', p_reason, 'group', p_class));
end
$$;
create function core.failures_muted(p_failures jsonb, p_muted text[]) returns boolean language sql immutable as $$
  select coalesce(bool_and(coalesce(f.value ->> 'group' = any (p_muted), false)), false)
  from jsonb_each(p_failures) as f
$$;
create function core.begun_handlers(p_ids uuid[], p_occurred_ats timestamptz[], p_generation bigint)
returns table (id uuid, occurred_at timestamptz, handler_name text, on_replay text)
language sql stable as $$
  select o.id, o.occurred_at, h.handler_name, h.on_replay
  from unnest(p_ids, p_occurred_ats) as k(id, occurred_at)
  cross join lateral (select o.* from core.outbox o where o.id = k.id and o.occurred_at = k.occurred_at offset 0) o
  join core.handlers h on h.event_type = o.event_type and core.handles(h.handler_name, o.target)
    and h.generation = (select k.generation from core.handlers k where k.event_type = o.event_type
      order by k.generation = p_generation desc, k.generation desc limit 1)
  where exists (select from core.failed_attempts f
      where f.event_id = o.id and f.occurred_at = o.occurred_at and f.handler_name = h.handler_name)
    and not exists (select from core.event_handled e
      where e.handler_name = h.handler_name and e.idempotency_key = o.idempotency_key)
$$;
create function core.error_group_note(p_group text, p_note text, p_noted_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  if btrim(p_note) = '' or octet_length(p_note) > 1024 then
    raise exception 'note: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_note)
      using errcode = 'SP030', column = 'note', hint = 'say what is known, or pass null to remove the note';
  end if;
  update core.error_groups g set note = btrim(p_note),
    noted_by = case when p_note is not null then coalesce(btrim(p_noted_by), session_user) end
  where g.group_id = p_group;
  if not found then
    raise exception 'group: % is not in core.error_groups', coalesce(quote_literal(left(p_group, 200)), 'null')
      using errcode = 'SP031', column = 'group', hint = '`workers events groups` lists them';
  end if;
  perform core.operator_action('group_note', p_noted_by, '{}', null,
    jsonb_build_object('group', p_group, 'note', btrim(p_note)));
end
$$;
create function core.error_group_mute(p_group text, p_until timestamptz, p_muted_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  if p_until is not null and not (p_until > clock_timestamp() and p_until <= clock_timestamp() + interval '366 days')
  then
    raise exception 'until: % must be in the future, at most 366 days ahead', p_until
      using errcode = 'SP030', column = 'until', hint = 'pass null to end a mute';
  end if;
  update core.error_groups g set muted_until = p_until where g.group_id = p_group;
  if not found then
    raise exception 'group: % is not in core.error_groups', coalesce(quote_literal(left(p_group, 200)), 'null')
      using errcode = 'SP031', column = 'group', hint = '`workers events groups` lists them';
  end if;
  if p_until is null then
    perform core.operator_action('group_unmute', p_muted_by, '{}', null, jsonb_build_object('group', p_group));
  else
    perform core.operator_action('group_mute', p_muted_by, '{}', null,
      jsonb_build_object('group', p_group, 'until', p_until));
  end if;
end
$$;
-- +goose StatementEnd
grant execute on function core.failed_attempts_add to spectral_worker;
grant execute on function core.error_group_note, core.error_group_mute, core.failures_muted to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.failed_attempts', 'core.error_groups', 'core.handlers');
drop function core.error_group_seen, core.failed_attempts_add, core.failed_by_sql, core.failures_muted,
  core.begun_handlers,
  core.error_group_note, core.error_group_mute;
drop table core.error_groups, core.failed_attempts, core.handlers;
