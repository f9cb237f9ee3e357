-- core.outbox_insert(...) checks one event and writes its row; the publishing functions below are
-- its only callers and nobody else may execute it. Returns the row id.
--
-- Refusals: SQLSTATE class SP, the field in the COLUMN of the error, the place in a bulk call in
-- its DETAIL. The codes are those of events.Refusal in Go (internal/core/events/refusal.go).
-- Reads core.event_types, core.publisher_sources, core.deployments, of which it locks a row at the higher
-- isolation levels; writes core.outbox. It runs as
-- the owner and with the search_path that its callers, which are definers, have set.
create function core.outbox_insert(p_position integer, p_event_id uuid, p_event_type text, p_event_version integer,
  p_occurred_at timestamptz, p_source text, p_target text, p_workspace_id uuid, p_payload jsonb, p_idempotency_key text,
  p_trace_context text, p_available_at timestamptz, p_generation bigint, p_class text,
  p_content_class text) returns uuid
language plpgsql volatile as $$
declare
  v_role constant text := current_setting('role');
  v_invoker constant name := case v_role when 'none' then session_user else v_role::name end;
  v_detail constant text := coalesce('event ' || p_position || ' of the call', 'docs/producers.md lists the refusals by SQLSTATE');
  v_id constant uuid := coalesce(p_event_id, core.uuid_v7());
  v_text text;
  v_type core.event_types;
  v_generation bigint;
  v_allowed boolean;
  v_status text;
  v_closed_at timestamptz;
  v_channel text;
  v_fault record;
  v_published integer;
  v_unused text;
  v_xid xid8;
  v_now timestamptz;
begin
  if p_event_type is null or p_event_type !~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)+$' or octet_length(p_event_type) > 128 then
    raise exception 'event_type: % must be lower-case words joined by dots, at most 128 bytes', coalesce(quote_literal(left(p_event_type, 200)), 'null')
      using errcode = 'SP001', column = 'event_type', detail = v_detail, hint = 'like worlds.world_model_card.published';
  end if;
  if p_event_version is null or p_event_version not between 1 and 1000000 then
    raise exception 'event_version: % must be from 1 to 1000000', coalesce(p_event_version::text, 'null')
      using errcode = 'SP002', column = 'event_version', detail = v_detail;
  end if;
  if p_source is null or p_source not in ('platform', 'worlds', 'core') then
    raise exception 'source: % must be platform, worlds or core', coalesce(quote_literal(left(p_source, 200)), 'null')
      using errcode = 'SP003', column = 'source', detail = v_detail;
  end if;
  if p_target not in ('platform', 'worlds', 'core') then
    raise exception 'target: % must be platform, worlds, core or null for every context', quote_literal(left(p_target, 200))
      using errcode = 'SP004', column = 'target', detail = v_detail;
  end if;
  if p_event_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
    raise exception 'event_id: % must not be the nil or the max UUID', p_event_id
      using errcode = 'SP020', column = 'event_id', detail = v_detail;
  end if;
  if p_workspace_id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
    raise exception 'workspace_id: % must not be the nil or the max UUID', p_workspace_id
      using errcode = 'SP022', column = 'workspace_id', detail = v_detail, hint = 'pass null for an event of no workspace';
  end if;
  -- Unicode's white space, whatever the database's locale
  if octet_length(p_idempotency_key) not between 1 and 512 or btrim(p_idempotency_key,
       E' \t\n\u000B\f\r\u0085\u00A0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200A\u2028\u2029\u202F\u205F\u3000') = '' then
    raise exception 'idempotency_key: must be 1 to 512 bytes, not blank; it has % bytes', octet_length(p_idempotency_key)
      using errcode = 'SP010', column = 'idempotency_key', detail = v_detail, hint = 'pass null to use the event id';
  end if;
  if p_trace_context !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
     or p_trace_context ~ '^(ff-|..-0{32}-|..-.{32}-0{16}-)' then
    raise exception 'trace_context: % must be a W3C traceparent', quote_literal(left(p_trace_context, 200))
      using errcode = 'SP011', column = 'trace_context', detail = v_detail;
  end if;
  if p_class !~ '^[a-z][a-z0-9_]{0,29}$' then
    raise exception 'class: % must be a lower-case identifier of at most 30 bytes', quote_literal(left(p_class, 200))
      using errcode = 'SP012', column = 'class', detail = v_detail;
  end if;
  if p_content_class not in ('operational', 'workspace') then
    raise exception 'content_class: % must be operational or workspace', quote_literal(left(p_content_class, 200))
      using errcode = 'SP013', column = 'content_class', detail = v_detail;
  end if;
  if p_available_at is not null
     and not (isfinite(p_available_at) and p_available_at <= clock_timestamp() + interval '366 days') then
    raise exception 'available_at: % must be a finite time at most 366 days ahead', p_available_at
      using errcode = 'SP014', column = 'available_at', detail = v_detail;
  end if;
  if p_occurred_at is not null
     and not (isfinite(p_occurred_at) and p_occurred_at >= '2000-01-01 00:00:00+00' and p_occurred_at <= clock_timestamp() + interval '1 day') then
    raise exception 'occurred_at: % must be a time from the year 2000 to at most one day ahead', p_occurred_at
      using errcode = 'SP015', column = 'occurred_at', detail = v_detail;
  end if;

  if p_payload is null or jsonb_typeof(p_payload) <> 'object' then
    raise exception 'payload: must be a JSON object, not %', coalesce(jsonb_typeof(p_payload), 'null')
      using errcode = 'SP005', column = 'payload', detail = v_detail;
  end if;
  v_text := p_payload::text;
  if octet_length(v_text) > 1048576 then
    raise exception 'payload: has % bytes as jsonb text; the limit is 1048576 (1 MiB)', octet_length(v_text)
      using errcode = 'SP006', column = 'payload', detail = v_detail, hint = 'store the content and publish a reference to it';
  end if;
  -- a document 65 levels deep has at least 65 opening brackets: only such a text is walked
  if octet_length(v_text) - octet_length(translate(v_text, '{[', '')) > 64
     and jsonb_path_exists(p_payload, 'strict $.**{64 to last} ? (@.type() == "object" || @.type() == "array")') then
    raise exception 'payload: is nested deeper than 64 levels'
      using errcode = 'SP007', column = 'payload', detail = v_detail;
  end if;
  -- Postgres keeps and prints numbers that readers cannot take; printed they are long
  -- (309 in two parts: a repetition count is at most 255); what rounds to 1.7976931348623157e308 is within it
  if octet_length(v_text) > 309 and v_text ~ '[0-9.]{255}[0-9.]{54}'
     and exists (select from jsonb_path_query(p_payload, 'strict $.** ? (@.type() == "number")') as n
                 where octet_length(translate(n::text, '-.', '')) > 400 or abs(n::numeric) >= 2::numeric ^ 1024 - 2::numeric ^ 970) then
    raise exception 'payload: has a number beyond 1.7976931348623157e308 or of more than 400 digits, which readers cannot take'
      using errcode = 'SP008', column = 'payload', detail = v_detail, hint = 'send it as a string';
  end if;

  -- In this order: id, then generation. Whoever saw the generation open has an id from before it was closed, and
  -- core.generation_retire waits for all of those. And id, then time: whoever takes a transaction id after a time knows that
  -- rows stamped before that time have lower ids, and so when all of them are visible or gone (core.outbox_watermark).
  v_xid := pg_current_xact_id();
  -- one query for all there is to know: each of its own would cost as much again
  select t.source, t.class, t.content_class, core.consumes(d.generation, t.consumed_in, t.consumed), t.payload_fault, t.deadline, t.successor,
         exists (select from core.publisher_sources s join pg_catalog.pg_roles r on r.rolname = s.role_name
                 where s.source = p_source and pg_has_role(v_invoker, r.oid, 'usage')),
         d.generation, d.status, d.closed_at
  into v_type.source, v_type.class, v_type.content_class, v_type.consumed, v_type.payload_fault, v_type.deadline, v_type.successor,
       v_allowed, v_generation, v_status, v_closed_at from core.event_types t
  left join core.deployments d on d.generation = coalesce(p_generation,
    (select max(l.generation) from core.deployments l where l.status = 'live'))
  where t.event_type = p_event_type and t.event_version = p_event_version;
  if not found then
    raise exception 'event_type: % version % is not registered', p_event_type, p_event_version
      using errcode = 'SP016', column = 'event_type', detail = v_detail,
            hint = 'see core.event_types; contracts are registered by `workers migrate up` and by a starting worker';
  end if;
  if v_type.source <> p_source then
    raise exception 'source: is %, but event type % belongs to %', p_source, p_event_type, v_type.source
      using errcode = 'SP018', column = 'source', detail = v_detail;
  end if;
  if not v_allowed then
    raise exception 'source: role % may not publish as %', v_invoker, p_source
      using errcode = 'SP017', column = 'source', detail = v_detail,
            hint = format('insert into core.publisher_sources (role_name, source) values (%L, %L);', v_invoker, p_source);
  end if;
  if v_type.deadline <= clock_timestamp() then
    raise exception 'event_type: % has been refused since %: it was deprecated', p_event_type, v_type.deadline
      using errcode = 'SP024', column = 'event_type', detail = v_detail, hint = 'publish ' || v_type.successor;
  end if;
  -- a number like 1.0 may be an integer's, which no path finds
  if v_type.payload_fault is not null
     and (jsonb_path_exists(p_payload, v_type.payload_fault) or v_text ~ '[0-9][.]0*[],}]') then
    select r ->> 'at' as at, r ->> 'says' as says into v_fault
    from core.event_types t, jsonb_array_elements(t.payload_rules) with ordinality as e(r, n)
    where t.event_type = p_event_type and t.event_version = p_event_version
      and (jsonb_path_exists(p_payload, (r ->> 'fault')::jsonpath)
           or exists (select from jsonb_path_query(p_payload, (r ->> 'whole')::jsonpath) as i where i::text like '%.%'))
    order by e.n limit 1;
    if found then
      raise exception 'payload: % %', case v_fault.at when '' then 'it' else v_fault.at end, v_fault.says
        using errcode = 'SP023', column = 'payload', detail = v_detail,
              hint = format('core.event_types.payload_schema and docs/events/%s.md have the fields of version %s', p_event_type, p_event_version);
    end if;
  end if;
  if v_generation is null and p_generation is null then
    raise exception 'generation: none is live' using errcode = 'SP019', column = 'generation', detail = v_detail,
            hint = 'start a worker, or as a member of spectral_operator: select core.generation_register(1, null);';
  end if;
  if v_generation is null or v_status = 'retired' then
    raise exception 'generation: % is %', p_generation, coalesce(v_status, 'not registered')
      using errcode = 'SP019', column = 'generation', detail = v_detail,
            hint = case when v_status = 'retired' then 'it takes no more events: publish into a live one (null: the highest)'
              else format('start a worker of that generation, or: select core.generation_register(%s, null); null publishes into the highest live one', p_generation) end;
  end if;
  if v_closed_at is not null then
    raise exception 'generation: % is being retired', v_generation
      using errcode = 'SP019', column = 'generation', detail = v_detail,
            hint = 'publish into a live one (null: the highest); to take events again: select core.generation_register(' || v_generation || ', null);';
  end if;
  -- a snapshot from before the generation was closed shows it open for as long as the transaction lasts: the lock is refused
  -- then (40001), and otherwise keeps it open until the end. Not at READ COMMITTED, whose producers would all write one row.
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    perform from core.deployments d where d.generation = v_generation for share;
  end if;
  v_channel := 'outbox_gen_' || v_generation || coalesce('_' || coalesce(p_class, v_type.class), '');

  -- a transaction of many rows announces itself here, ahead of its commit, and the trigger then
  -- stays out of the election: its long commit would keep everybody else silent meanwhile
  v_published := coalesce(substring(current_setting('spectral.published', true) from '^[0-9]{1,8}$')::integer, 0) + 1;
  v_unused := set_config('spectral.published', v_published::text, true);
  if v_published > 100 and current_setting('spectral.rung_' || v_channel, true) is distinct from 'y' then
    v_unused := set_config('spectral.rung_' || v_channel, 'y', true);
    v_unused := pg_notify(v_channel, v_id::text);
  end if;

  if v_type.deadline is not null and current_setting('spectral.deprecated_' || md5(p_event_type), true) is distinct from 'y' then
    v_unused := set_config('spectral.deprecated_' || md5(p_event_type), 'y', true); -- once in a transaction
    raise warning 'event_type: % is deprecated and will be refused from % on', p_event_type, v_type.deadline
      using hint = 'publish ' || v_type.successor;
  end if;

  v_now := clock_timestamp();
  insert into core.outbox
    (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
     workspace_id, payload, idempotency_key, trace_context, status, created_at, available_at, delivered_at) values
    (v_id, p_event_type, p_event_version, coalesce(p_occurred_at, v_now), p_source, p_target,
     coalesce(p_content_class, v_type.content_class), v_channel, v_generation, p_workspace_id, p_payload,
     -- a caller's own key is qualified, so that two sources or tenants never share one
     case when p_idempotency_key is null or p_idempotency_key = v_id::text then v_id::text
          else concat(p_source, ':', coalesce(p_workspace_id::text, '-'), ':', p_idempotency_key) end,
     p_trace_context,
     case when v_type.consumed then 'pending' else 'delivered' end, v_now, greatest(p_available_at, v_now),
     case when v_type.consumed then null else v_now end);
  return v_id;
end
$$;
