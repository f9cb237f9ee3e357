-- core.outbox_failures(...) lists the dead letters of one source, the latest failure first, discarded ones too: what a
-- producer may know of its events without reading the outbox. p_limit is from 1 to 1000; it returns fewer rows when the
-- payloads reach 16 MiB. For the next page, pass failed_at, event_id and occurred_at of the last row; an empty page is
-- the end.
--
-- As the policies of the contexts' tables do, it shows the events of the workspace in spectral.workspace_id, or those
-- of no workspace if none is set: a session that acts for one workspace does not see the events of another.
--
-- Refuses an unknown source (SP003), one that the caller may not publish as (SP017), and a malformed call (SP030).
-- Reads core.publisher_sources, core.outbox.
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
  -- planned for each call: a plan that is kept would not know whether there is a workspace
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
