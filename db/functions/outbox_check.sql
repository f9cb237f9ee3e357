-- core.outbox_check(...) refuses an event that core.outbox_publish_event or core.outbox_publish_rows may not publish:
-- it says what is wrong. They call it for events that core.publishable does not take at once. Returns true for an event
-- that is right all the same, and warns once in a transaction that its type is deprecated. p_position is its place in
-- the call, null for a single event. p_found: the caller has found its type, its generation and the right to publish;
-- what comes in between is refused as a conflict (40001). The rest are the parameters of those functions.
--
-- Refusals: see core.refuse. The codes and the wording are those of events.Refusal in Go (internal/core/events).
-- Reads core.event_types, core.publisher_sources, core.deployments and core.outbox. It runs as the owner and with the
-- search_path that its callers, which are definers, have set.
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
  -- Unicode's white space, whatever the database's locale
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
  -- a document 65 levels deep has at least 65 opening brackets: only such a text is walked
  if octet_length(v_text) - octet_length(translate(v_text, '{[', '')) > 64
     and jsonb_path_exists(p_payload, 'strict $.**{64 to last} ? (@.type() == "object" || @.type() == "array")') then
    perform core.refuse('SP007', 'payload', 'must be nested at most 64 levels deep', 'more than 64 levels',
      'flatten it, or store the content and publish a reference to it', p_position);
  end if;
  -- Postgres keeps and prints numbers that readers cannot take; printed they are long
  -- (309 in two parts: a repetition count is at most 255); what rounds to 1.7976931348623157e308 is within it
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
  -- a number like 1.0 may be an integer's, which no path finds
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
