-- Retention: policies, and the sweep that follows them.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- How long rows are kept (docs/decisions/0016). internal/core/retention has the same in Go, and a test compares them.
create table core.retention_policies (
  subject text not null,
  content_class text not null default '*',
  active_ttl_days integer not null,
  tombstoned_grace_days integer not null,
  disposal text not null default 'HARD_DELETE',
  swept_at timestamptz null,
  constraint retention_policies_pk primary key (subject, content_class),
  constraint retention_policies_subject_known check (subject in ('outbox_row', 'event_handled', 'operator_action')),
  -- all content classes alike, today: what sweeps does not look at them
  constraint retention_policies_content_class_any check (content_class = '*'),
  constraint retention_policies_active_ttl_days_range check (active_ttl_days between 1 and 36500),
  constraint retention_policies_tombstoned_grace_days_range check (tombstoned_grace_days between 1 and 3650),
  constraint retention_policies_disposal_known check (disposal = 'HARD_DELETE')
);
comment on table core.retention_policies is 'How long rows are kept; core.retention_sweep deletes no others.';
comment on column core.retention_policies.active_ttl_days is 'days of 24 hours until a row is tombstoned';
comment on column core.retention_policies.tombstoned_grace_days is 'days of 24 hours from tombstone to deletion';
comment on column core.retention_policies.swept_at is 'of outbox_row: when a worker or operator last began a sweep';
grant select on core.retention_policies to spectral_operator, spectral_retention;

insert into core.retention_policies (subject, active_ttl_days, tombstoned_grace_days) values
  ('outbox_row', 45, 7),
  ('event_handled', 60, 7),
  ('operator_action', 365, 7);

-- +goose StatementBegin
create function core.retention_policies_check() returns text language sql volatile as $$
  select case
    when count(*) filter (where p.subject in ('outbox_row', 'event_handled')) < 2
      then 'outbox_row and event_handled must both have a policy'
    when max(p.active_ttl_days) filter (where p.subject = 'event_handled')
      <= max(p.active_ttl_days + p.tombstoned_grace_days) filter (where p.subject = 'outbox_row') then
      format('event_handled is kept for %s days, which must be more than the %s + %s days of outbox_row: an event '
        'handled again would take effect again',
        max(p.active_ttl_days) filter (where p.subject = 'event_handled'),
          max(p.active_ttl_days) filter (where p.subject = 'outbox_row'),
        max(p.tombstoned_grace_days) filter (where p.subject = 'outbox_row'))
  end from core.retention_policies p where p.content_class = '*'
$$;
create function core.retention_policies_keep() returns trigger
language plpgsql set search_path = pg_catalog, core, pg_temp as $$
declare
  v_fault text;
begin
  if tg_op = 'TRUNCATE' then
    v_fault := 'outbox_row and event_handled must both have a policy';
  else
    perform from core.retention_policies p order by p.subject, p.content_class for update;
    v_fault := core.retention_policies_check();
  end if;
  if v_fault is not null then
    raise exception 'core.retention_policies: %', v_fault using errcode = 'SP050', column = 'active_ttl_days',
      hint = 'change the policies that depend on each other in one transaction';
  end if;
  return null;
end
$$;
create constraint trigger retention_policies_keep
  after insert or delete or update of subject, content_class, active_ttl_days,
    tombstoned_grace_days on core.retention_policies
  deferrable initially deferred for each row execute function core.retention_policies_keep();
create trigger retention_policies_truncate before truncate on core.retention_policies
  for each statement execute function core.retention_policies_keep();
create function core.outbox_retained_from(p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz,
  p_failed_at timestamptz) returns timestamptz
language sql immutable as $$
  select case p_status when 'delivered' then greatest(p_occurred_at, p_delivered_at)
                       when 'failed' then greatest(p_occurred_at, p_failed_at) end
$$;
create function core.key_in_outbox(p_event_id uuid, p_idempotency_key text) returns boolean
language sql stable as $$
  select exists (select from core.outbox o where o.id = p_event_id) or exists (select from core.outbox o
                 where o.idempotency_key = p_idempotency_key and o.status <> 'delivered'
                   and o.idempotency_key <> o.id::text)
$$;
create function core.outbox_expired(p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz,
  p_failed_at timestamptz, p_deleted_at timestamptz, p_undiscarded_at timestamptz, p_expired timestamptz,
  p_undiscarded_since timestamptz) returns boolean
language sql immutable as $$
  select case when p_deleted_at is null
    and core.outbox_retained_from(p_status, p_occurred_at, p_delivered_at, p_failed_at) <= p_expired
              then case when p_status = 'failed' then coalesce(p_undiscarded_at <= p_undiscarded_since, true)
                else true end
              else false end
$$;
create function core.event_handled_expired(p_event_id uuid, p_idempotency_key text, p_handled_at timestamptz,
  p_deleted_at timestamptz, p_expired timestamptz) returns boolean
language sql stable as $$
  select case when p_deleted_at is null and p_handled_at <= p_expired
    then not core.key_in_outbox(p_event_id, p_idempotency_key) else false end
$$;
create function core.retention_window(p_subject text, out expired timestamptz, out grace_over timestamptz,
  out gone timestamptz) returns record
language plpgsql stable as $$
declare
  v_now constant timestamptz := clock_timestamp();
begin
  select v_now - make_interval(hours => p.active_ttl_days * 24),
    v_now - make_interval(hours => p.tombstoned_grace_days * 24),
         v_now - make_interval(hours => (p.active_ttl_days + p.tombstoned_grace_days) * 24)
  into expired, grace_over, gone
  from core.retention_policies p where p.subject = p_subject and p.content_class = '*';
end
$$;
create function core.retention_delete_outbox(p_after text[], p_limit integer) returns table (rows bigint, next text[])
language plpgsql volatile as $$
declare
  v_over constant timestamptz := (core.retention_window('outbox_row')).grace_over;
  v_rows tid[];
  v_ids uuid[];
  v_ats timestamptz[];
  v_operation uuid;
begin
  select o.id into v_operation from core.operations o
  where o.state in ('done', 'aborted') and o.state_at <= (core.retention_window('outbox_row')).gone
  order by o.state_at limit 1;
  if found then
    delete from core.operation_rows r where r.operation_id = v_operation
      and r.n in (select k.n from core.operation_rows k where k.operation_id = v_operation
        order by k.n limit 10 * p_limit);
    if not found then delete from core.operations o where o.id = v_operation; end if;
  end if;
  if p_after is null then -- once in a sweep
    delete from core.error_groups g where g.note is null and coalesce(g.muted_until < clock_timestamp(), true)
      and g.last_seen < (core.retention_window('outbox_row')).expired - (clock_timestamp() - v_over);
    delete from core.quarantined_events q where not exists (select from core.outbox o
      where o.id = q.id and o.occurred_at = q.occurred_at and o.status in ('pending', 'in_flight')
        and o.deleted_at is null);
  end if;
  select array_agg(l.ctid), array_agg(l.id), array_agg(l.occurred_at),
    case when count(*) = p_limit then array[max(l.deleted_at)::text] end
  into v_rows, v_ids, v_ats, next from (select o.ctid, o.id, o.occurred_at, o.deleted_at from core.outbox o
        where o.deleted_at between coalesce(p_after[1]::timestamptz, '-infinity') and v_over
          and o.status in ('delivered', 'failed') order by o.deleted_at limit p_limit for update skip locked) l;
  delete from core.outbox o where o.ctid = any (v_rows) and o.id = any (v_ids)
    and case when o.deleted_at <= v_over then o.status in ('delivered', 'failed') else false end;
  get diagnostics rows = row_count;
  delete from core.failed_attempts f where f.event_id = any (v_ids)
    and (f.event_id, f.occurred_at) in (select * from unnest(v_ids, v_ats));
  return next;
end
$$;
create function core.retention_tombstone_outbox(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_window constant record := core.retention_window('outbox_row');
  v_after_id constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_after_at constant timestamptz := coalesce(p_after[2], '-infinity');
  v_ids uuid[];
  v_ats timestamptz[];
  v_last_id uuid;
  v_last_at timestamptz;
begin
  select array_agg(k.id), array_agg(k.occurred_at) into v_ids, v_ats
  from (select o.id, o.occurred_at from core.outbox o where (o.id, o.occurred_at) > (v_after_id, v_after_at)
        order by o.id, o.occurred_at limit p_limit) k;
  v_last_id := v_ids[cardinality(v_ids)];
  v_last_at := v_ats[cardinality(v_ids)];
  update core.outbox o set deleted_at = clock_timestamp() where o.ctid = any (array(
      select e.ctid from core.outbox e
      where (e.id, e.occurred_at) > (v_after_id, v_after_at) and (e.id, e.occurred_at) <= (v_last_id, v_last_at)
        and e.occurred_at <= v_window.expired
        and core.outbox_expired(e.status, e.occurred_at, e.delivered_at, e.claimed_at, e.deleted_at, e.undiscarded_at,
              v_window.expired, v_window.grace_over) for update skip locked))
    and o.id between v_ids[1] and v_last_id
    and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired, v_window.grace_over);
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_last_id::text, v_last_at::text] end;
  return next;
end
$$;
create function core.retention_delete_event_handled(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_over constant timestamptz := (core.retention_window('event_handled')).grace_over;
  v_rows tid[];
  v_back tid[];
begin
  select array_agg(l.ctid) filter (where not l.back), array_agg(l.ctid) filter (where l.back),
         case when count(*) = p_limit then array[max(l.deleted_at)::text] end into v_rows, v_back, next
  from (select h.ctid, h.deleted_at, core.key_in_outbox(h.event_id, h.idempotency_key) as back from core.event_handled h
        where h.deleted_at between coalesce(p_after[1]::timestamptz, '-infinity') and v_over
        order by h.deleted_at limit p_limit for update skip locked) l;
  update core.event_handled h set deleted_at = null where h.ctid = any (v_back);
  delete from core.event_handled h where h.ctid = any (v_rows) and case when h.deleted_at <= v_over then true
    else false end;
  get diagnostics rows = row_count;
  return next;
end
$$;
create function core.retention_tombstone_event_handled(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_expired constant timestamptz := (core.retention_window('event_handled')).expired;
  v_handlers text[];
  v_keys text[];
  v_due tid[];
begin
  select array_agg(p.handler_name), array_agg(p.idempotency_key), array_agg(p.ctid) filter (where p.due)
  into v_handlers, v_keys, v_due from (select h.handler_name, h.idempotency_key, h.ctid,
               core.event_handled_expired(h.event_id, h.idempotency_key, h.handled_at, h.deleted_at, v_expired) as due
        from core.event_handled h
        where (h.handler_name, h.idempotency_key) > (coalesce(p_after[1], ''), coalesce(p_after[2], ''))
        order by h.handler_name, h.idempotency_key limit p_limit) p;
  update core.event_handled h set deleted_at = clock_timestamp()
  where h.ctid = any (array(select d.ctid from core.event_handled d where d.ctid = any (v_due) for update skip locked))
    and core.event_handled_expired(h.event_id, h.idempotency_key, h.handled_at, h.deleted_at, v_expired);
  get diagnostics rows = row_count;
  next := case when cardinality(v_keys) = p_limit then array[v_handlers[p_limit], v_keys[p_limit]] end;
  return next;
end
$$;
create function core.retention_delete_operator_actions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_over constant timestamptz := (core.retention_window('operator_action')).grace_over;
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.id) into v_ids
    from (select a.id from core.operator_actions a where a.id > v_after order by a.id limit p_limit) p;
  delete from core.operator_actions a where a.id = any (array(select d.id from core.operator_actions d
    where d.id > v_after and d.id <= v_ids[cardinality(v_ids)] and d.deleted_at <= v_over for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
create function core.retention_tombstone_operator_actions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_expired constant timestamptz := (core.retention_window('operator_action')).expired;
begin
  with due as (
    select a.id, a.acted_at from core.operator_actions a
    where a.acted_at between coalesce(p_after[1]::timestamptz, '-infinity') and v_expired and a.deleted_at is null
    order by a.acted_at limit p_limit for update skip locked),
  written as (
    update core.operator_actions a set deleted_at = clock_timestamp() where a.id = any (array(select d.id from due d)))
  select count(*), case when count(*) = p_limit then array[max(d.acted_at)::text] end into rows, next from due d;
  return next;
end
$$;
create function core.retention_sweep(p_step text, p_after text[] default null, p_limit integer default 1000,
  p_run uuid default null, p_swept_by text default null) returns table (rows bigint, next text[])
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
set lock_timeout = '1s' set plan_cache_mode = force_generic_plan set timezone = 'UTC' set datestyle = 'ISO' as $$
declare
  v_role constant text := current_setting('role');
  v_invoker constant name := case v_role when 'none' then session_user else v_role::name end;
  v_fault text;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'limit: % must be from 1 to 10000', coalesce(p_limit::text, 'null') using errcode = 'SP051',
      column = 'limit', hint = 'a sweep is many short transactions: call again with what next says';
  end if;
  if p_step is null or p_step !~ '^[a-z]+[.]retention_(delete|tombstone)_[a-z_]+$'
     or not exists (select from pg_proc f join pg_namespace n on n.oid = f.pronamespace
                    where n.nspname = split_part(p_step, '.', 1) and f.proname = split_part(p_step, '.', 2)
                      and pg_get_userbyid(f.proowner) = current_user) then
    raise exception 'step: % is unknown', coalesce(p_step, 'null') using errcode = 'SP051', column = 'step',
      hint = 'pass a function of the owner, like core.retention_delete_outbox';
  end if;
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a sweep is not run at isolation level %', current_setting('transaction_isolation')
      using errcode = 'SP053', hint = 'begin isolation level read committed;';
  end if;
  if not pg_try_advisory_xact_lock(2958103347719062245) then return; end if;
  v_fault := core.retention_policies_check();
  if v_fault is not null then
    raise exception 'core.retention_policies: %', v_fault
      using errcode = 'SP050', column = 'active_ttl_days', hint = 'correct the policies; nothing is swept until then';
  end if;
  if pg_has_role(v_invoker, 'spectral_operator', 'usage') and not exists (select from core.operator_actions a
                     where a.acted_at > clock_timestamp() - interval '1 day' and a.deleted_at is null
                       and a.action = 'sweep' and a.login = session_user and a.details ->> 'run_id' is not distinct
                         from p_run::text) then
    perform core.operator_action('sweep', p_swept_by, '{}', null, jsonb_build_object('run_id', p_run));
    update core.retention_policies p set swept_at = clock_timestamp() where p.subject = 'outbox_row';
  end if;
  return query execute format('select s.rows, s.next from %s($1, $2) s', p_step) using p_after, p_limit;
end
$$;
create function core.retention_begin(p_interval double precision) returns double precision
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  if p_interval is null or not (p_interval > 0 and p_interval <= 86400) then
    raise exception 'interval: % must be above 0 and at most 86400 seconds', coalesce(p_interval::text, 'null')
      using errcode = 'SP051', column = 'interval';
  end if;
  update core.retention_policies p set swept_at = clock_timestamp() where p.subject = 'outbox_row'
    and coalesce(p.swept_at not between clock_timestamp() - make_interval(secs => p_interval) and clock_timestamp(),
      true);
  if found then return 0; end if;
  return (select extract(epoch from p.swept_at - clock_timestamp()) + p_interval from core.retention_policies p
    where p.subject = 'outbox_row');
end
$$;
create function core.retention_status(p_warn_days integer default 7) returns table (policy_fault text,
  failed_expiring bigint, failed_expire_first_at timestamptz, swept_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set jit = off as $$
#variable_conflict use_column
begin
  if p_warn_days is null or p_warn_days not between 0 and 36500 then
    raise exception 'warn_days: % must be from 0 to 36500', coalesce(p_warn_days::text, 'null')
      using errcode = 'SP051', column = 'warn_days';
  end if;
  return query
  select core.retention_policies_check(), count(*),
         min(greatest(core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at) + t.ttl,
                      o.undiscarded_at + t.grace)),
         (select p.swept_at from core.retention_policies p where p.subject = 'outbox_row')
  from (select make_interval(hours => p.active_ttl_days * 24) as ttl,
    make_interval(hours => p.tombstoned_grace_days * 24) as grace,
               clock_timestamp() + make_interval(hours => p_warn_days * 24) as until
        from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*') t,
       core.outbox o where o.status = 'failed' and o.deleted_at is null
    and (o.claimed_at <= t.until - t.ttl or o.claimed_at is null)
    and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          t.until - t.ttl, t.until - t.grace);
end
$$;
create function core.retention_due() returns table (subject text, to_tombstone bigint, to_delete bigint,
  estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_of record;
  v_window record;
  v_percent double precision;
begin
  for v_of in values
    ('outbox_row', 'core.outbox',
      'core.outbox_expired(t.status, t.occurred_at, t.delivered_at, t.claimed_at, t.deleted_at, t.undiscarded_at, '
        '$1, $2)',
      't.deleted_at <= $2 and t.status in (''delivered'', ''failed'')'),
    ('event_handled', 'core.event_handled',
      'core.event_handled_expired(t.event_id, t.idempotency_key, t.handled_at, t.deleted_at, $1)',
      't.deleted_at <= $2 and not core.key_in_outbox(t.event_id, t.idempotency_key)'),
    ('operator_action', 'core.operator_actions', 't.deleted_at is null and t.acted_at <= $1', 't.deleted_at <= $2')
  loop
    subject := v_of.column1;
    v_window := core.retention_window(subject);
    select least(100, 100 * 100000 / greatest(sum(greatest(c.reltuples, pg_stat_get_live_tuples(c.oid))), 1))
      into v_percent
    from pg_class c where c.oid = v_of.column2::regclass
       or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = v_of.column2::regclass);
    execute format('select 100 / $3 * count(*) filter (where %s), 100 / $3 * count(*) filter (where %s) '
      'from %s t tablesample system ($3)', v_of.column3, v_of.column4, v_of.column2)
    into to_tombstone, to_delete using v_window.expired, v_window.grace_over, v_percent;
    estimated := v_percent < 100;
    return next;
  end loop;
end
$$;
create function core.outbox_months() returns table (name name, ends_at timestamptz) language sql stable
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' as $$
  select c.relname, to_timestamp(right(c.relname, 7), 'YYYY_MM')
    + case when starts_with(c.relname, 'outbox_until_') then interval '0' else interval '1 month' end
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = 'core.outbox'::regclass and c.relname ~ '^outbox_(until_)?[0-9]{4}_[0-9]{2}$'
$$;
create function core.outbox_partition_table(p_name name) returns void language plpgsql volatile as $$
begin
  execute format('create table core.%I (like core.outbox including all) with (%s)', p_name,
    (select array_to_string(c.reloptions, ', ') from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'core.outbox'::regclass order by c.oid limit 1)); -- the storage parameters of the first
end
$$;
create function core.outbox_partitions_ahead() returns text[] language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp set lock_timeout = '500ms' set timezone = 'UTC' as $$
declare
  v_made text[] := '{}';
  v_month timestamptz;
begin
  if not exists (select from pg_partitioned_table t where t.partrelid = 'core.outbox'::regclass)
    or not pg_try_advisory_xact_lock(6140285913370954871) then
    return v_made;
  end if;
  select coalesce(max(m.ends_at), date_trunc('month', clock_timestamp())) into v_month from core.outbox_months() m;
  while v_month <= date_trunc('month', clock_timestamp()) + interval '2 months' loop
    if not exists (select from core.outbox_rest r
      where r.occurred_at >= v_month and r.occurred_at < v_month + interval '1 month') then
      v_made := v_made || ('outbox_' || to_char(v_month, 'YYYY_MM'));
      perform core.outbox_partition_table(v_made[cardinality(v_made)]::name);
      execute format('alter table core.outbox attach partition core.%I for values from (%L) to (%L)',
        v_made[cardinality(v_made)], v_month, v_month + interval '1 month');
    end if;
    v_month := v_month + interval '1 month';
  end loop;
  return v_made;
end
$$;
create function core.outbox_hand_over(p_from name, p_to name) returns void language plpgsql volatile as $$
declare
  v record;
begin
  execute format('comment on table core.%I is %L', p_to,
    obj_description(format('core.%I', p_from)::regclass, 'pg_class'));
  for v in select x.privilege_type || case when x.attname is null then '' else format(' (%I)', x.attname) end
        as privilege,
      case x.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(x.grantee)) end as grantee,
      case when x.is_grantable then ' with grant option' else '' end as option
    from pg_class c cross join lateral (select r.*, null::name as attname from aclexplode(c.relacl) r
      union all select r.*, a.attname from pg_attribute a, aclexplode(a.attacl) r where a.attrelid = c.oid) x
    where c.oid = format('core.%I', p_from)::regclass and x.grantee <> c.relowner loop
    execute format('grant %s on core.%I to %s%s', v.privilege, p_to, v.grantee, v.option);
    execute format('revoke %s on core.%I from %s cascade', v.privilege, p_from, v.grantee);
  end loop;
end
$$;
create function core.outbox_make_partitioned(p_until timestamptz) returns void language plpgsql volatile
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' as $$
declare
  v_first constant name := 'outbox_until_' || to_char(p_until, 'YYYY_MM');
  v_indexes text[];
  v_trigger text;
  v_name name;
  v_statement text;
begin
  lock table core.outbox in access exclusive mode;
  select array_agg(pg_get_indexdef(i.indexrelid)) into v_indexes from pg_index i
  where i.indrelid = 'core.outbox'::regclass and not i.indisprimary;
  select pg_get_triggerdef(t.oid) into strict v_trigger from pg_trigger t
  where t.tgrelid = 'core.outbox'::regclass and t.tgname = 'outbox_notify';
  drop trigger outbox_notify on core.outbox;
  for v_name in select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = 'core.outbox'::regclass loop
    execute format('alter index core.%I rename to %I', v_name, v_first || substr(v_name, length('outbox') + 1));
  end loop;
  execute format('alter table core.outbox rename to %I', v_first);
  execute format('create table core.outbox (like core.%I including defaults including constraints including comments) '
    'partition by range (occurred_at)', v_first);
  alter table core.outbox drop constraint outbox_before;
  alter table core.outbox add constraint outbox_pk primary key (id, occurred_at);
  foreach v_statement in array v_indexes loop
    execute v_statement;
  end loop;
  execute format('alter table core.outbox attach partition core.%I for values from (minvalue) to (%L)', v_first,
    p_until);
  execute format('alter table core.%I drop constraint outbox_before', v_first);
  perform core.outbox_partition_table('outbox_rest');
  alter table core.outbox attach partition core.outbox_rest default;
  execute v_trigger;
  perform core.outbox_hand_over(v_first, 'outbox');
end
$$;
create function core.outbox_make_plain() returns void language plpgsql volatile
set search_path = pg_catalog, core, pg_temp set timezone = 'UTC' set enable_seqscan = off set jit = off as $$
declare
  v_kept constant regclass := (select i.inhrelid from pg_inherits i where i.inhparent = 'core.outbox'::regclass
    order by pg_relation_size(i.inhrelid) desc, i.inhrelid limit 1);
  v_kept_name constant name := (select c.relname from pg_class c where c.oid = v_kept);
  v_trigger text;
  v record;
begin
  if (select count(*) from (select from core.outbox o where o.tableoid <> v_kept and o.deleted_at is null
      and o.status in ('pending', 'in_flight', 'relayed', 'failed') limit 10001) o) > 10000 then
    raise exception 'more than 10000 events that wait or have failed are in other partitions than %', v_kept_name
      using errcode = 'object_not_in_prerequisite_state',
        hint = 'let workers handle what waits, and replay or discard what failed';
  end if;
  lock table core.outbox in access exclusive mode;
  select pg_get_triggerdef(t.oid) into strict v_trigger from pg_trigger t
  where t.tgrelid = 'core.outbox'::regclass and t.tgname = 'outbox_notify';
  drop trigger outbox_notify on core.outbox;
  execute format('alter table core.outbox detach partition %s', v_kept);
  for v in select x.relname as whole, p.relname as part from pg_index i join pg_class x on x.oid = i.indexrelid
      join pg_index k on k.indrelid = v_kept join pg_class p on p.oid = k.indexrelid
    where i.indrelid = 'core.outbox'::regclass and replace(pg_get_indexdef(i.indexrelid), ' ONLY ', ' ')
      = replace(replace(pg_get_indexdef(k.indexrelid), p.relname || ' ON', x.relname || ' ON'),
        v_kept_name || ' USING', 'outbox USING') loop
    execute format('alter index core.%I rename to %I', v.whole,
      'outbox_partitioned' || substr(v.whole, length('outbox') + 1));
    execute format('alter index core.%I rename to %I', v.part, v.whole);
  end loop;
  alter table core.outbox rename to outbox_partitioned;
  execute format('alter table core.%I rename to outbox', v_kept_name);
  execute v_trigger;
  perform core.outbox_hand_over('outbox_partitioned', 'outbox');
  for v in select unnest(array['pending', 'in_flight', 'relayed', 'failed']) as status loop -- each by its index
    execute format('with moved as (delete from core.outbox_partitioned p where p.status = %L and p.deleted_at is null '
      'returning *) insert into core.outbox select * from moved', v.status);
  end loop;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_partitions_ahead to spectral_worker;
grant execute on function core.outbox_months to spectral_operator;
grant execute on function core.retention_sweep, core.retention_status, core.retention_due
  to spectral_operator, spectral_retention, spectral_worker;
grant execute on function core.retention_begin to spectral_retention, spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
-- +goose StatementBegin
do $$
begin
  lock table core.retention_policies in access exclusive mode;
  if exists (select subject, content_class, active_ttl_days, tombstoned_grace_days from core.retention_policies
             except values ('outbox_row', '*', 45, 7), ('event_handled', '*', 60, 7), ('operator_action', '*', 365, 7))
  then
    raise exception 'core.retention_policies has policies that you set: going down would lose them';
  end if;
end
$$;
-- +goose StatementEnd
drop trigger retention_policies_truncate on core.retention_policies;
drop trigger retention_policies_keep on core.retention_policies;
drop function core.retention_policies_check, core.retention_policies_keep, core.outbox_retained_from,
  core.key_in_outbox, core.outbox_expired, core.event_handled_expired, core.retention_window,
  core.retention_delete_outbox, core.retention_tombstone_outbox, core.retention_delete_event_handled,
  core.retention_tombstone_event_handled, core.retention_delete_operator_actions,
  core.retention_tombstone_operator_actions, core.retention_sweep, core.retention_begin, core.retention_status,
  core.retention_due, core.outbox_partitions_ahead, core.outbox_partition_table,
  core.outbox_make_partitioned, core.outbox_make_plain, core.outbox_hand_over, core.outbox_months;
drop table core.retention_policies;
