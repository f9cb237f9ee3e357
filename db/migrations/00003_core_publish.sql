-- Publishing: what every producer calls, in any language, and what wakes the workers.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
create function core.outbox_notify() returns trigger language plpgsql volatile as $$
declare
  v_setting constant pg_catalog.text := pg_catalog.concat('spectral.notified_', NEW.channel);
  v_unused pg_catalog.text;
begin
  if pg_catalog.texteq(pg_catalog.current_setting(v_setting, true), 'y') then return null; end if;
  v_unused := pg_catalog.set_config(v_setting, 'y', true);
  if pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(NEW.channel, 7310579632010148197)) then
    if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(NEW.channel, 2891336453310961517)) then
      return null;
    end if;
  end if;
  v_unused := pg_catalog.pg_notify(NEW.channel, NEW.id::pg_catalog.text);
  return null;
end
$$;
create constraint trigger outbox_notify
  after insert on core.outbox
  deferrable initially deferred
  for each row when (new.status = 'pending') execute function core.outbox_notify();
create function core.outbox_barrier(p_channel text) returns boolean
language plpgsql volatile set search_path = pg_catalog, core, pg_temp as $$
declare
  v_passed boolean := false;
begin
  begin
    if pg_try_advisory_xact_lock(hashtextextended(p_channel, 7310579632010148197)) then
      begin
        v_passed := pg_try_advisory_xact_lock(hashtextextended(p_channel, 2891336453310961517));
        raise exception using errcode = 'SPA00', message = 'gives A back';
      exception when sqlstate 'SPA00' then
        null;
      end;
    end if;
    raise exception using errcode = 'SPS00', message = 'gives S back';
  exception when sqlstate 'SPS00' then
    null;
  end;
  return v_passed;
end
$$;
create function core.listen(p_channels text[]) returns void language plpgsql volatile as $$
declare
  v_channel text;
begin
  foreach v_channel in array p_channels loop
    execute format('listen %I', v_channel);
  end loop;
end
$$;
create function core.generation_hint() returns text language sql stable as $$
  select coalesce((select format('start the workers of a new generation, or make the newest live again: '
    '`workers generation register %1$s`, or: select core.generation_register(%1$s, null)', max(d.generation))
    from core.deployments d where d.status = 'draining' having count(*) > 0),
    'start a worker: it registers its generation')
$$;
create function core.consumes(p_generation bigint, p_consumed_in jsonb, p_consumed boolean) returns boolean
language sql immutable as $$
  select coalesce((p_consumed_in ->> p_generation::text)::boolean, p_consumed)
$$;
create function core.unconsumed(p_event_type text, p_event_version integer, p_generation bigint) returns boolean
language sql stable as $$
  select exists (select from core.event_types t
    where t.event_type = p_event_type and t.event_version = p_event_version
      and not core.consumes(p_generation, t.consumed_in, t.consumed))
$$;
create function core.shown(p_value jsonb) returns text language sql immutable as $$
  select case jsonb_typeof(p_value)
    when 'object' then 'an object'
    when 'array' then 'an array'
    when 'string' then '"' || regexp_replace(left(p_value #>> '{}', 60), E'[\u0001-\u001f\u007f]', ' ', 'g')
      || case when char_length(p_value #>> '{}') > 60 then '..." (' || octet_length(p_value #>> '{}') || ' bytes)'
        else '"' end
    when 'number' then left(p_value::text, 60)
      || case when char_length(p_value::text) > 60 then '... (' || char_length(p_value::text) || ' characters)'
        else '' end
    else coalesce(p_value::text, 'null') end
$$;
create function core.refuse(p_code text, p_field text, p_reason text, p_received text, p_hint text, p_position integer)
returns void language plpgsql volatile as $$
begin
  raise exception '%: %', p_field, p_reason using errcode = p_code, column = p_field, hint = p_hint,
    detail = coalesce('event ' || p_position || ' of the call: ', '') || 'received ' || p_received;
end
$$;
create function core.payload_violations(p_payload jsonb, p_rules jsonb) returns table (says text, received text)
language sql stable as $$
  with broken as (
    select e.n, r.at, r.says, r.shows, r.kind, r.value, f.found
    from jsonb_array_elements(p_rules) with ordinality as e(rule, n),
      jsonb_to_record(e.rule) as r(at text, says text, shows text, kind text, value text, fault text, whole text),
      lateral (select coalesce(
        (select v from jsonb_path_query(p_payload, r.fault::jsonpath) as v limit 1),
        (select v from jsonb_path_query(p_payload, r.whole::jsonpath) as v
          where v::text like '%.%' limit 1)) as found) as f
    where f.found is not null
  )
  select b.at || ' ' || b.says, b.at || ' ' || case b.shows
    when 'type' then (select core.shown(v) from jsonb_path_query(p_payload, b.value::jsonpath) as v
                      where jsonb_typeof(v) <> b.kind limit 1)
    when 'fields' then (select '{' || left(coalesce(string_agg(k, ', ' order by k collate "C"), ''), 200) || '}'
                        from jsonb_object_keys(case b.shows when 'fields' then b.found else '{}' end) as k)
    when 'elements' then (b.found #>> '{}') || case b.found #>> '{}' when '1' then ' element' else ' elements' end
    when 'characters' then char_length(b.found #>> '{}') || ' characters'
    else core.shown(b.found) end
  from broken b
  where not exists (select from broken t where t.shows = 'type' and t.n < b.n and starts_with(b.at || '/', t.at || '/'))
  order by b.n
$$;
create function core.publishable(p_event_id uuid, p_occurred_at timestamptz, p_payload jsonb, p_text text,
  p_target text, p_workspace_id uuid, p_idempotency_key text, p_trace_context text, p_available_at timestamptz,
  p_class text, p_content_class text, p_payload_fault jsonpath, p_deadline timestamptz) returns boolean
language sql volatile as $$
  select (p_event_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) is not true
    and (p_occurred_at between '2000-01-01 00:00:00+00' and clock_timestamp() + interval '20 hours') is not false
    and jsonb_typeof(p_payload) = 'object'
    and octet_length(p_text) <= 1048576
    and (octet_length(p_text) <= 64 or octet_length(p_text) - octet_length(translate(p_text, '{[', '')) <= 64)
    and (octet_length(p_text) <= 309 or p_text !~ '[0-9.]{255}[0-9.]{54}')
    and (p_payload_fault is null or not jsonb_path_exists(p_payload, p_payload_fault)
      and (strpos(p_text, '.0') = 0 or p_text !~ '[0-9][.]0*[],}]'))
    and (p_target in ('platform', 'worlds', 'core')) is not false
    and (p_workspace_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) is not true
    and (octet_length(p_idempotency_key) between 1 and 512 and p_idempotency_key ~ '[!-~]') is not false
    and (p_trace_context ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$') is not false
    and (p_available_at > '-infinity' and p_available_at <= clock_timestamp() + interval '8760 hours') is not false
    and (p_class ~ '^[a-z][a-z0-9_]{0,29}$') is not false
    and (p_content_class in ('operational', 'workspace')) is not false
    and p_deadline is null
$$;
create function core.outbox_check(p_position integer, p_invoker name, p_found boolean, p_event_id uuid,
  p_occurred_at timestamptz, p_event_type text, p_source text, p_payload jsonb, p_event_version integer, p_target text,
  p_workspace_id uuid, p_idempotency_key text, p_trace_context text, p_available_at timestamptz, p_generation bigint,
  p_class text, p_content_class text) returns boolean language plpgsql volatile as $$
declare
  v_text text;
  v_type core.event_types;
  v_generation bigint;
  v_status text;
  v_closed_at timestamptz;
  v_says text;
  v_received text;
  v_unused text;
begin
  if p_event_type is null or p_event_type !~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)+$'
    or octet_length(p_event_type) > 128 then
    perform core.refuse('SP001', 'event_type', 'must be lower-case words joined by dots, at most 128 bytes',
      core.shown(to_jsonb(p_event_type)), 'like worlds.world_model_card.published', p_position);
  end if;
  if p_event_version is null or p_event_version not between 1 and 1000000 then
    perform core.refuse('SP002', 'event_version', 'must be from 1 to 1000000', core.shown(to_jsonb(p_event_version)),
      'core.event_types lists the versions of each event type', p_position);
  end if;
  if p_source is null or p_source not in ('platform', 'worlds', 'core') then
    perform core.refuse('SP003', 'source', 'must be platform, worlds or core', core.shown(to_jsonb(p_source)),
      'name the context that publishes the event', p_position);
  end if;
  if p_target not in ('platform', 'worlds', 'core') then
    perform core.refuse('SP004', 'target', 'must be platform, worlds or core', core.shown(to_jsonb(p_target)),
      'leave it out to reach every context', p_position);
  end if;
  if p_event_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
    perform core.refuse('SP020', 'event_id', 'must not be the nil or the max UUID', core.shown(to_jsonb(p_event_id)),
      'leave it out to get a new one', p_position);
  end if;
  if p_workspace_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
    perform core.refuse('SP022', 'workspace_id', 'must not be the nil or the max UUID',
      core.shown(to_jsonb(p_workspace_id)), 'leave it out for an event of no workspace', p_position);
  end if;
  if octet_length(p_idempotency_key) not between 1 and 512 or btrim(p_idempotency_key,
       E' \t\n\u000B\f\r\u0085\u00A0'
       '\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200A'
       '\u2028\u2029\u202F\u205F\u3000') = '' then
    perform core.refuse('SP010', 'idempotency_key', 'must have 1 to 512 bytes and not be blank',
      core.shown(to_jsonb(p_idempotency_key)), 'leave it out to use the event id', p_position);
  end if;
  if p_trace_context !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
     or p_trace_context ~ '^(ff-|..-0{32}-|..-.{32}-0{16}-)' then
    perform core.refuse('SP011', 'trace_context', 'must be a W3C traceparent', core.shown(to_jsonb(p_trace_context)),
      'like 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', p_position);
  end if;
  if p_class !~ '^[a-z][a-z0-9_]{0,29}$' then
    perform core.refuse('SP012', 'class', 'must be a lower-case identifier of at most 30 bytes',
      core.shown(to_jsonb(p_class)), 'leave it out to use the class of the event type', p_position);
  end if;
  if p_content_class not in ('operational', 'workspace') then
    perform core.refuse('SP013', 'content_class', 'must be operational or workspace',
      core.shown(to_jsonb(p_content_class)), 'leave it out to use the content class of the event type', p_position);
  end if;
  if p_available_at is not null
     and not (isfinite(p_available_at) and p_available_at <= clock_timestamp() + interval '366 days') then
    perform core.refuse('SP014', 'available_at', 'must be a finite time at most 366 days ahead',
      core.shown(to_jsonb(p_available_at at time zone 'UTC')) || ' UTC',
        'leave it out for an event that is due at once', p_position);
  end if;
  if p_occurred_at is not null
     and not (isfinite(p_occurred_at) and p_occurred_at >= '2000-01-01 00:00:00+00'
       and p_occurred_at <= clock_timestamp() + interval '1 day') then
    perform core.refuse('SP015', 'occurred_at', 'must be from the year 2000 to at most one day ahead',
      core.shown(to_jsonb(p_occurred_at at time zone 'UTC')) || ' UTC', 'leave it out to use the time of publishing',
      p_position);
  end if;
  if p_payload is null or jsonb_typeof(p_payload) <> 'object' then
    perform core.refuse('SP005', 'payload', 'must be a JSON object', core.shown(p_payload),
      'wrap any other value in an object, like {"value": 1}', p_position);
  end if;
  v_text := p_payload::text;
  if octet_length(v_text) > 1048576 then
    perform core.refuse('SP006', 'payload', 'must have at most 1048576 bytes (1 MiB)',
      octet_length(v_text) || ' bytes as jsonb text', 'store the content and publish a reference to it', p_position);
  end if;
  if octet_length(v_text) - octet_length(translate(v_text, '{[', '')) > 64
     and jsonb_path_exists(p_payload, 'strict $.**{64 to last} ? (@.type() == "object" || @.type() == "array")') then
    perform core.refuse('SP007', 'payload', 'must be nested at most 64 levels deep', 'more than 64 levels',
      'flatten it, or store the content and publish a reference to it', p_position);
  end if;
  if octet_length(v_text) > 309 and v_text ~ '[0-9.]{255}[0-9.]{54}' then
    select core.shown(n) into v_received from jsonb_path_query(p_payload, 'strict $.** ? (@.type() == "number")') as n
    where octet_length(translate(n::text, '-.', '')) > 400
      or abs(n::numeric) >= 2::numeric ^ 1024 - 2::numeric ^ 970 limit 1;
    if found then
      perform core.refuse('SP008', 'payload',
        'must not have a number beyond 1.7976931348623157e308 or of more than 400 digits',
        v_received, 'send it as a string', p_position);
    end if;
  end if;
  select t.source, t.payload_fault, t.deadline, t.successor, d.generation, d.status, d.closed_at
  into v_type.source, v_type.payload_fault, v_type.deadline, v_type.successor, v_generation, v_status, v_closed_at
  from core.event_types t
  left join core.deployments d on d.generation = coalesce(p_generation,
    (select max(l.generation) from core.deployments l where l.status = 'live'))
  where t.event_type = p_event_type and t.event_version = p_event_version;
  if not found then
    perform core.refuse('SP016', 'event_type',
      format('version %s of %s is not registered', p_event_version, p_event_type),
      format('version %s; registered: %s', p_event_version,
        (select coalesce(string_agg(t.event_version::text, ', ' order by t.event_version), 'none')
         from core.event_types t where t.event_type = p_event_type)),
      'core.event_types lists what is registered; `workers migrate up` and a starting worker register their contracts',
        p_position);
  end if;
  if v_type.source <> p_source then
    perform core.refuse('SP018', 'source', format('must be %s, which %s belongs to', v_type.source, p_event_type),
      core.shown(to_jsonb(p_source)), 'publish an event type of the context that you publish as', p_position);
  end if;
  if not exists (select from core.publisher_sources s
      where s.source = p_source and pg_has_role(p_invoker, to_regrole(quote_ident(s.role_name)), 'usage')) then
    perform core.refuse('SP017', 'source', format('role %s may not publish as %s', p_invoker, p_source),
      core.shown(to_jsonb(p_source)),
      format('insert into core.publisher_sources (role_name, source) values (%L, %L);', p_invoker, p_source),
        p_position);
  end if;
  if exists (select from core.outbox o where o.id = p_event_id -- its key would be taken for this one's
    and (o.source <> p_source or o.workspace_id is distinct from p_workspace_id)) then
    perform core.refuse('SP020', 'event_id', 'is that of an event of another source or workspace',
      core.shown(to_jsonb(p_event_id)), 'leave it out to get a new one', p_position);
  end if;
  if v_type.deadline <= clock_timestamp() then
    perform core.refuse('SP024', 'event_type', format('%s is deprecated and has been refused since %s', p_event_type,
      to_char(v_type.deadline at time zone 'UTC', 'YYYY-MM-DD HH24:MI "UTC"')), core.shown(to_jsonb(p_event_type)),
      'publish ' || v_type.successor, p_position);
  end if;
  if v_type.payload_fault is not null and (jsonb_path_exists(p_payload, v_type.payload_fault)
     or v_text ~ '[0-9][.]0*[],}]' and exists (
       select from core.event_types t, jsonb_array_elements(t.payload_rules) as r,
         jsonb_path_query(p_payload, (r ->> 'whole')::jsonpath) as n
       where t.event_type = p_event_type and t.event_version = p_event_version and r ? 'whole' and n::text like '%.%'))
         then
    select string_agg(v.says, '; ' order by v.n) filter (where v.n <= 10) || case when count(*) > 10
      then format('; and %s more', count(*) - 10) else '' end,
      string_agg(v.received, '; ' order by v.n) filter (where v.n <= 10)
    into v_says, v_received
    from core.event_types t, core.payload_violations(p_payload, t.payload_rules) with ordinality as v(says, received, n)
    where t.event_type = p_event_type and t.event_version = p_event_version;
    if v_says is not null then
      perform core.refuse('SP023', 'payload', v_says, v_received,
        format('select payload_schema from core.event_types where event_type = ''%s'' and event_version = %s;',
          p_event_type, p_event_version), p_position);
    end if;
  end if;
  if v_generation is null and p_generation is null then
    perform core.refuse('SP019', 'generation', 'none is live', 'null', core.generation_hint(), p_position);
  end if;
  if v_generation is null or v_status = 'retired' then
    perform core.refuse('SP019', 'generation', format('%s is %s', p_generation, coalesce(v_status, 'not registered')),
      p_generation::text,
      case when v_status = 'retired' then 'it takes no more events: publish into a live one (null: the highest)'
      else format('start a worker of that generation, or: select core.generation_register(%s, null); null publishes '
        'into the highest live one', p_generation) end, p_position);
  end if;
  if v_closed_at is not null then
    perform core.refuse('SP019', 'generation', format('%s is being retired', v_generation),
      coalesce(p_generation::text, 'null'),
      format('publish into a live one (null: the highest); to take events again: `workers generation register %s`',
        v_generation), p_position);
  end if;
  if v_type.deadline is not null and current_setting('spectral.deprecated_' || md5(p_event_type), true) is distinct
    from 'y' then
    v_unused := set_config('spectral.deprecated_' || md5(p_event_type), 'y', true); -- once in a transaction
    raise warning 'event_type: % is deprecated and will be refused from % on', p_event_type, v_type.deadline
      using hint = 'publish ' || v_type.successor;
  end if;
  if not p_found then
    raise exception 'the event type, the generation or the right to publish came while this call was running'
      using errcode = 'serialization_failure', hint = 'repeat the transaction';
  end if;
  return true;
end
$$;
create function core.outbox_publish_event(p_event_id uuid, p_occurred_at timestamptz, p_event_type text, p_source text,
  p_payload jsonb, p_event_version integer, p_target text, p_workspace_id uuid, p_idempotency_key text,
  p_trace_context text, p_available_at timestamptz, p_generation bigint, p_class text, p_content_class text,
  p_cause_id uuid default null)
returns uuid language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  v_invoker constant name := coalesce(nullif(current_setting('role'), 'none')::name, session_user);
  v_now constant timestamptz := case when pg_current_xact_id() is not null then clock_timestamp() end;
  v_id uuid;
  v_generation bigint;
  v_channel text;
  v_published constant integer := coalesce(nullif(current_setting('spectral.published', true), ''), '0')::integer + 1;
  v_unused text;
begin
  insert into core.outbox
    (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
     workspace_id, payload, idempotency_key, trace_context, status, created_at, available_at, delivered_at,
     cause_id)
  select p.id, p_event_type, p_event_version, coalesce(p_occurred_at, v_now), p_source, p_target,
    coalesce(p_content_class, t.content_class),
    'outbox_gen_' || d.generation || coalesce('_' || coalesce(p_class, t.class), ''), d.generation,
    p_workspace_id, p_payload,
    case when p_idempotency_key is null or p_idempotency_key = p.id::text then p.id::text
      else concat(p_source, ':', coalesce(p_workspace_id::text, '-'), ':', p_idempotency_key) end,
    p_trace_context,
    case when core.consumes(d.generation, t.consumed_in, t.consumed) then 'pending' else 'delivered' end,
    v_now, greatest(p_available_at, v_now),
    case when core.consumes(d.generation, t.consumed_in, t.consumed) then null else v_now end, p_cause_id
  from (select coalesce(p_event_id, core.uuid_v7()) as id, p_payload::text as text,
      exists (select from core.publisher_sources s where s.source = p_source
        and pg_has_role(v_invoker, to_regrole(quote_ident(s.role_name)), 'usage')) as allowed
    offset 0) as p -- each is computed once
  left join core.event_types t
    on t.event_type = p_event_type and t.event_version = p_event_version and t.source = p_source
  left join core.deployments d on d.status <> 'retired' and d.closed_at is null
    and d.generation = coalesce(p_generation,
      (select max(l.generation) from core.deployments l where l.status = 'live'))
  where p_event_id is null and t.event_type is not null and d.generation is not null and p.allowed
      and core.publishable(p_event_id, p_occurred_at, p_payload, p.text, p_target, p_workspace_id, p_idempotency_key,
        p_trace_context, p_available_at, p_class, p_content_class, t.payload_fault, t.deadline)
    or core.outbox_check(null, v_invoker, t.event_type is not null and d.generation is not null and p.allowed,
      p_event_id, p_occurred_at, p_event_type, p_source, p_payload, p_event_version, p_target, p_workspace_id,
      p_idempotency_key, p_trace_context, p_available_at, p_generation, p_class, p_content_class)
  returning id, generation, channel into v_id, v_generation, v_channel;
  if not found then
    raise exception 'a trigger on core.outbox discards events' using hint = '`workers doctor` names it';
  end if;
  if current_setting('transaction_isolation') not like 'read %' then
    perform from core.deployments d where d.generation = v_generation for share;
  end if;
  v_unused := set_config('spectral.published', v_published::text, true);
  if v_published > 100 and current_setting('spectral.notified_' || v_channel, true) is distinct from 'y' then
    v_unused := set_config('spectral.notified_' || v_channel, 'y', true);
    v_unused := pg_notify(v_channel, v_id::text);
  end if;
  return v_id;
end
$$;
create function core.outbox_publish(p_event_type text, p_source text, p_payload jsonb,
  p_event_version integer default 1, p_target text default null, p_workspace_id uuid default null,
  p_idempotency_key text default null, p_trace_context text default null, p_available_at timestamptz default null,
  p_generation bigint default null, p_class text default null, p_content_class text default null) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  return core.outbox_publish_event(null, null, p_event_type, p_source, p_payload, p_event_version, p_target,
    p_workspace_id, p_idempotency_key, p_trace_context, p_available_at, p_generation, p_class, p_content_class);
end
$$;
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
create function core.event_field_fault(p_field text, p_value jsonb) returns text language sql immutable as $$
  select case
    when p_field = 'payload' then null
    when p_field not in ('event_id', 'event_type', 'event_version', 'occurred_at', 'source', 'target', 'workspace_id',
      'idempotency_key', 'trace_context', 'available_at', 'generation', 'class', 'content_class')
      then 'unknown'
    when p_value = 'null' then null
    when p_field in ('event_version', 'generation') then
      case when jsonb_typeof(p_value) = 'number' and (p_value #>> '{}' ~ '^-?[0-9]{1,9}$'
        or p_field = 'generation' and p_value #>> '{}' ~ '^[0-9]{1,18}$') then null else 'must be a whole number' end
    when p_field in ('event_id', 'workspace_id') then
      case when jsonb_typeof(p_value) = 'string'
        and p_value #>> '{}' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        then null else 'must be a UUID' end
    when p_field in ('occurred_at', 'available_at') then
      case when jsonb_typeof(p_value) = 'string'
        and p_value #>> '{}' ~ ('^(?!0000)[0-9]{4}-'
          || '((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)'
          || '[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)$')
        and (p_value #>> '{}' !~ '^....-02-29'
          or extract(day from make_date(left(p_value #>> '{}', 4)::integer, 3, 1) - 1) = 29)
        then null else 'must be a time as in RFC 3339, with a zone' end
    when jsonb_typeof(p_value) <> 'string' then 'must be a string' end
$$;
create function core.outbox_publish_many(p_events jsonb) returns uuid[]
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_fault text;
  v_field text;
  v_value jsonb;
  v_place integer;
begin
  if p_events is null or jsonb_typeof(p_events) <> 'array' then
    perform core.refuse('SP021', 'p_events', 'must be a JSON array of events', core.shown(p_events),
      'like [{"event_type": "worlds.scan.completed", "source": "worlds", "payload": {}}]', null);
  end if;
  select x.fault, x.field, x.value, x.place into v_fault, v_field, v_value, v_place
  from (select e.place, f.field, coalesce(f.value, e.event) as value,
      case when jsonb_typeof(e.event) <> 'object' then 'no object'
        else core.event_field_fault(f.field, f.value) end as fault
    from jsonb_array_elements(p_events) with ordinality as e(event, place)
    left join jsonb_each(case jsonb_typeof(e.event) when 'object' then e.event else '{}' end) as f(field, value) on true
    where (case jsonb_typeof(e.event) when 'object' then e.event - array['payload', 'event_type', 'source'] end = '{}'
      and jsonb_typeof(e.event -> 'event_type') = 'string' and jsonb_typeof(e.event -> 'source') = 'string') is not true
    offset 0) as x
  where x.fault is not null limit 1;
  if v_fault = 'no object' then
    perform core.refuse('SP021', 'p_events', 'an event must be a JSON object', core.shown(v_value),
      'like {"event_type": "worlds.scan.completed", "source": "worlds", "payload": {}}', v_place);
  elsif v_fault = 'unknown' then
    perform core.refuse('SP021', 'p_events', 'an event has a field that is unknown', core.shown(to_jsonb(v_field)),
      'fields are the parameters of core.outbox_publish without p_, event_id and occurred_at', v_place);
  elsif v_fault is not null then
    perform core.refuse('SP021', v_field, v_fault, core.shown(v_value),
      E'core.outbox_publish shows the type of each parameter: \\df core.outbox_publish', v_place);
  end if;
  return (select core.outbox_publish_rows(
      case when count(e.event_id) > 0 then array_agg(e.event_id) end,
      case when count(e.occurred_at) > 0 then array_agg(e.occurred_at) end,
      coalesce(array_agg(e.event_type), '{}'), array_agg(e.source), array_agg(e.payload),
      array_agg(coalesce(e.event_version, 1)),
      case when count(e.target) > 0 then array_agg(e.target) end,
      case when count(e.workspace_id) > 0 then array_agg(e.workspace_id) end,
      case when count(e.idempotency_key) > 0 then array_agg(e.idempotency_key) end,
      case when count(e.trace_context) > 0 then array_agg(e.trace_context) end,
      case when count(e.available_at) > 0 then array_agg(e.available_at) end,
      case when count(e.generation) > 0 then array_agg(e.generation) end,
      case when count(e.class) > 0 then array_agg(e.class) end,
      case when count(e.content_class) > 0 then array_agg(e.content_class) end)
    from jsonb_to_recordset(p_events) as e(event_id uuid, occurred_at timestamptz, event_type text, source text,
      payload jsonb, event_version integer, target text, workspace_id uuid, idempotency_key text, trace_context text,
      available_at timestamptz, generation bigint, class text, content_class text));
end
$$;
create function core.event_types_register(p_generation bigint, p_types jsonb) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_changed integer;
begin
  if p_generation is null or p_generation not between 0 and 999999999999 then
    perform core.refuse('SP019', 'generation', 'must be from 0 to 999999999999', coalesce(p_generation::text, 'null'),
      'pass the generation of the build, 0 for none', null);
  end if;
  perform from core.event_types t where t.event_type in (select e ->> 'event_type' from jsonb_array_elements(p_types) e)
    order by t.event_type, t.event_version for update;
  insert into core.event_types as t
    (event_type, event_version, source, class, content_class, consumed, registered_by,
     payload_schema, payload_rules, payload_fault, deadline, successor, sensitive)
  select r.event_type, r.event_version, r.source, r.class, r.content_class, r.consumed, p_generation,
         r.payload_schema, r.payload_rules, r.payload_fault::jsonpath, r.deadline, r.successor,
         coalesce(r.sensitive, '{}')
  from jsonb_to_recordset(p_types) as r
    (event_type text, event_version integer, source text, class text, content_class text, consumed boolean,
     payload_schema jsonb, payload_rules jsonb, payload_fault text, deadline timestamptz, successor text,
     sensitive text[])
  order by r.event_type, r.event_version
  on conflict (event_type, event_version) do update
    set source = excluded.source, class = excluded.class, content_class = excluded.content_class,
        consumed = excluded.consumed, registered_by = excluded.registered_by,
        payload_schema = excluded.payload_schema, payload_rules = excluded.payload_rules,
        payload_fault = excluded.payload_fault, deadline = excluded.deadline, successor = excluded.successor,
        sensitive = excluded.sensitive, registered_at = clock_timestamp()
    where t.registered_by <= excluded.registered_by and (t.source, t.class, t.content_class, t.consumed,
        t.registered_by, t.payload_schema, t.payload_rules, t.payload_fault::text, t.deadline, t.successor, t.sensitive)
      is distinct from (excluded.source, excluded.class, excluded.content_class, excluded.consumed,
        excluded.registered_by, excluded.payload_schema, excluded.payload_rules, excluded.payload_fault::text,
        excluded.deadline, excluded.successor, excluded.sensitive);
  get diagnostics v_changed = row_count;
  update core.event_types t set deadline = r.deadline, successor = r.successor
    from (select e ->> 'event_type' as event_type, max(e ->> 'deadline')::timestamptz as deadline,
      max(e ->> 'successor') as successor from jsonb_array_elements(p_types) as e group by 1) r
    where t.event_type = r.event_type and t.registered_by <= p_generation
      and (t.deadline, t.successor) is distinct from (r.deadline, r.successor);
  update core.event_types t set consumed_in = r.consumed_in from (select n.event_type,
            coalesce((select jsonb_object_agg(g.key, g.value) from core.event_types o, jsonb_each(o.consumed_in) as g
                      where o.event_type = n.event_type), '{}')
            || jsonb_build_object(p_generation::text, n.consumed) as consumed_in
          from (select e ->> 'event_type' as event_type, bool_or((e ->> 'consumed')::boolean) as consumed
                from jsonb_array_elements(p_types) as e group by 1) n) r
    where p_generation > 0 and t.event_type = r.event_type and t.consumed_in <> r.consumed_in;
  return v_changed;
end
$$;
create function core.prior_replays(p_history jsonb) returns integer
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select coalesce(max(least(c::numeric, 1000000)), 0)::integer
  from jsonb_path_query(p_history, '$[*].cycle ? (@.type() == "number")') as c
$$;
create function core.outbox_failures(p_source text, p_limit integer default 100,
  p_after_failed_at timestamptz default null, p_after_id uuid default null,
  p_after_occurred_at timestamptz default null) returns table (event_id uuid, event_type text, event_version integer,
  occurred_at timestamptz, target text, workspace_id uuid, payload jsonb, idempotency_key text, trace_context text,
  attempts integer, last_error text, first_failed_at timestamptz, failed_at timestamptz, discarded_at timestamptz,
  prior_replays integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
declare
  v_role constant text := current_setting('role');
  v_invoker constant name := case v_role when 'none' then session_user else v_role::name end;
  v_workspace constant uuid := nullif(current_setting('spectral.workspace_id', true), '')::uuid;
  v_page text;
  v_size bigint;
  v_bytes bigint := 0;
begin
  if p_source is null or p_source not in ('platform', 'worlds', 'core') then
    raise exception 'source: % must be platform, worlds or core', coalesce(quote_literal(left(p_source, 200)), 'null')
      using errcode = 'SP003', column = 'source';
  end if;
  if not exists (select from core.publisher_sources s join pg_catalog.pg_roles r on r.rolname = s.role_name
                 where s.source = p_source and pg_has_role(v_invoker, r.oid, 'usage')) then
    raise exception 'source: role % may not publish as %, nor read what became of its events', v_invoker, p_source
      using errcode = 'SP017', column = 'source',
      hint = format('insert into core.publisher_sources (role_name, source) values (%L, %L);', v_invoker, p_source);
  end if;
  if p_limit is null or p_limit not between 1 and 1000 then
    raise exception 'limit: % must be from 1 to 1000', coalesce(p_limit::text, 'null')
      using errcode = 'SP030', column = 'limit';
  end if;
  if num_nulls(p_after_failed_at, p_after_id, p_after_occurred_at) not in (0, 3) then
    raise exception 'after: failed_at, id and occurred_at of a row must be given together, or none of them'
      using errcode = 'SP030', column = 'after', hint = 'pass those of the last row of the page before';
  end if;
  v_page := format('select o.* from core.outbox o where o.status = ''failed'' and o.source = $1 '
    'and o.workspace_id %s%s',
    case when v_workspace is null then 'is null' else '= $2' end,
    case when p_after_id is null then '' else ' and (o.claimed_at, o.id, o.occurred_at) < ($3, $4, $5)' end);
  for event_id, event_type, event_version, occurred_at, target, workspace_id, payload, idempotency_key, trace_context,
      attempts, last_error, first_failed_at, failed_at, discarded_at, prior_replays, v_size in execute format(
    'select f.id, f.event_type, f.event_version, f.occurred_at, f.target, f.workspace_id, f.payload, '
      'f.idempotency_key, f.trace_context,
       f.attempts, f.last_error, f.first_failed_at, f.claimed_at, f.discarded_at,
       core.prior_replays(f.failure_history),
       octet_length(f.payload::text)
     from ((%1$s and o.deleted_at is null order by o.claimed_at desc, o.id desc, o.occurred_at desc limit $6)
       union all
       (%1$s and o.deleted_at is not null and o.discarded_at is not null order by o.claimed_at desc, o.id desc, '
         'o.occurred_at desc limit $6)) f
     order by f.claimed_at desc, f.id desc, f.occurred_at desc limit $6', v_page)
    using p_source, v_workspace, p_after_failed_at, p_after_id, p_after_occurred_at, p_limit loop
    return next;
    v_bytes := v_bytes + v_size;
    exit when v_bytes >= 16777216;
  end loop;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_barrier, core.listen to spectral_worker;
grant execute on function core.consumes, core.unconsumed, core.prior_replays to spectral_operator;
grant execute on function core.outbox_publish, core.outbox_publish_event, core.outbox_publish_many,
  core.outbox_publish_rows, core.outbox_failures to spectral_publisher;
grant execute on function core.event_types_register to spectral_operator, spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop trigger outbox_notify on core.outbox;
drop function core.outbox_notify, core.outbox_barrier, core.listen, core.generation_hint, core.consumes,
  core.unconsumed, core.shown, core.refuse, core.payload_violations, core.publishable,
  core.outbox_check, core.outbox_publish, core.outbox_publish_event, core.outbox_publish_many, core.outbox_publish_rows,
  core.event_field_fault, core.event_types_register, core.prior_replays, core.outbox_failures;
