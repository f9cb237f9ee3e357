-- core.outbox_publish_rows(...) publishes many events in the caller's transaction, all or none, and returns their ids
-- in order. The parameters are those of core.outbox_publish_event, each with one element per event; an array that is
-- shorter than p_event_types has nulls there; p_cause_id is of all. The Go publisher and core.outbox_publish_many call
-- it. Refusals: see core.outbox_check. Reads and locks what core.outbox_publish_event does; writes core.outbox.
create function core.outbox_publish_rows(p_event_ids uuid[], p_occurred_at timestamptz[], p_event_types text[],
  p_sources text[], p_payloads jsonb[], p_event_versions integer[], p_targets text[], p_workspace_ids uuid[],
  p_idempotency_keys text[], p_trace_contexts text[], p_available_at timestamptz[], p_generations bigint[],
  p_classes text[], p_content_classes text[], p_cause_id uuid default null) returns uuid[]
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_invoker constant name := coalesce(nullif(current_setting('role'), 'none')::name, session_user);
  v_count constant integer := cardinality(p_event_types);
  v_ids uuid[];
  v_id uuid;
  v_sources text[];
  v_live bigint;
  v_place integer;
  v_channels text[];
  v_channel text;
  v_published integer;
  v_earlier constant integer := coalesce(nullif(current_setting('spectral.published', true), ''), '0')::integer;
  v_unused text;
  v_xid xid8;
  v_now timestamptz;
  v_microseconds bigint;
begin
  if exists (select from unnest(p_event_ids) as u(id) where u.id is not null) then
    -- the events of this call are not in the outbox yet, where core.outbox_check looks for the id
    select e.place, e.id into v_place, v_id
    from (select u.id, row(u.source, u.workspace_id) as origin, u.place,
        first_value(row(u.source, u.workspace_id)) over (partition by u.id order by u.place) as first
      from unnest(p_event_ids, p_sources, p_workspace_ids) with ordinality as u(id, source, workspace_id, place)
      where u.id is not null) as e
    where e.origin is distinct from e.first order by e.place limit 1;
    if found then
      perform core.refuse('SP020', 'event_id', 'is that of an event of another source or workspace',
        core.shown(to_jsonb(v_id)), 'leave it out to get a new one', v_place);
    end if;
  end if;
  v_xid := pg_current_xact_id(); -- before the generations are read: see core.outbox_publish_event
  v_sources := array(select s.source from core.publisher_sources s
    where pg_has_role(v_invoker, to_regrole(quote_ident(s.role_name)), 'usage'));
  v_live := (select max(d.generation) from core.deployments d where d.status = 'live');
  if current_setting('transaction_isolation') not like 'read %' then
    perform from core.deployments d
    where d.generation = v_live or d.generation in (select u.generation from unnest(p_generations) as u(generation))
    for share;
  end if;
  -- Ids, as core.uuid_v7 makes them, and times are a microsecond apart, in the order of the call: inserting a row takes
  -- longer, so none is ahead of the clock for long.
  v_now := clock_timestamp();
  v_microseconds := extract(epoch from v_now) * 1000000;
  v_ids := array(select coalesce(u.id, encode(overlay(uuid_send(gen_random_uuid()) placing int8send(
      ((v_microseconds + u.place) / 1000 << 16) | (7 << 12) | (v_microseconds + u.place) % 1000 * 512 / 125)
      from 1), 'hex')::uuid)
    from rows from (unnest(p_event_ids), generate_series(1, v_count)) with ordinality as u(id, n, place));
  with inserted as (
    insert into core.outbox
      (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
       workspace_id, payload, idempotency_key, trace_context, status, created_at, available_at, delivered_at, cause_id)
    select e.id, e.event_type, e.event_version, coalesce(e.occurred_at, e.now), e.source, e.target,
      coalesce(e.content_class, t.content_class),
      'outbox_gen_' || t.generation || coalesce('_' || coalesce(e.class, t.class), ''), t.generation,
      e.workspace_id, e.payload,
      case when e.idempotency_key is null or e.idempotency_key = e.id::text then e.id::text
        else concat(e.source, ':', coalesce(e.workspace_id::text, '-'), ':', e.idempotency_key) end,
      e.trace_context, case when t.consumes then 'pending' else 'delivered' end, e.now, greatest(e.available_at, e.now),
      case when t.consumes then null else e.now end, p_cause_id
    from (select u.*, u.payload::text as payload_text, v_now + u.place * interval '1 microsecond' as now
      -- the series is for the planner, which expects 1,000 rows of it, and 10 of the arrays: too few for a hash join
      from rows from (unnest(v_ids, p_event_ids, p_occurred_at, p_event_types, p_sources, p_payloads, p_event_versions,
        p_targets, p_workspace_ids, p_idempotency_keys, p_trace_contexts, p_available_at, p_generations, p_classes,
        p_content_classes), generate_series(1, v_count)) with ordinality as u(id, event_id, occurred_at, event_type,
        source, payload, event_version, target, workspace_id, idempotency_key, trace_context, available_at, generation,
        class, content_class, n, place)
      offset 0) as e
    left join (select t.event_type, t.event_version, t.source, t.class, t.content_class, t.payload_fault, t.deadline,
        d.generation, core.consumes(d.generation, t.consumed_in, t.consumed) as consumes
      from core.event_types t
      join core.deployments d on d.generation = any (array_append(p_generations, v_live)) and d.status <> 'retired'
        and d.closed_at is null
      where t.event_type = any (p_event_types) and t.source = any (v_sources)
      offset 0) as t -- once for each type and generation, not for each event
      on t.event_type = e.event_type and t.event_version = e.event_version and t.source = e.source
        and t.generation = coalesce(e.generation, v_live)
    where t.generation is not null
        and (e.event_id is null or not exists (select from core.outbox o
          where o.id = e.event_id and (o.source <> e.source or o.workspace_id is distinct from e.workspace_id)))
        and core.publishable(e.event_id, e.occurred_at, e.payload, e.payload_text, e.target, e.workspace_id,
          e.idempotency_key, e.trace_context, e.available_at, e.class, e.content_class, t.payload_fault, t.deadline)
      or core.outbox_check(e.place::integer, v_invoker, t.generation is not null, e.event_id, e.occurred_at,
        e.event_type, e.source, e.payload, e.event_version, e.target, e.workspace_id, e.idempotency_key,
        e.trace_context, e.available_at, e.generation, e.class, e.content_class)
    returning channel)
  select coalesce(sum(i.count), 0), array_agg(i.channel) into v_published, v_channels
  from (select channel, count(*) from inserted group by channel) as i;
  if v_published <> v_count then
    raise exception 'a trigger on core.outbox discards events' using hint = '`workers doctor` names it';
  end if;

  -- a transaction that publishes much notifies here: see core.outbox_publish_event
  v_unused := set_config('spectral.published', (v_earlier + v_published)::text, true);
  foreach v_channel in array coalesce(v_channels, '{}') loop
    if v_earlier + v_published > 100
      and current_setting('spectral.notified_' || v_channel, true) is distinct from 'y' then
      v_unused := set_config('spectral.notified_' || v_channel, 'y', true);
      v_unused := pg_notify(v_channel, v_ids[1]::text);
    end if;
  end loop;
  return v_ids;
end
$$;
