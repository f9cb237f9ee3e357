-- Facts for the doctor, and findings: a state, a problem and its fix. They are read with search_path = pg_catalog.
-- Names are quoted as SQL needs them.

-- name: Now :one
select clock_timestamp()::timestamptz as now;

-- name: Server :one
select current_setting('server_version_num')::integer as version,
  current_setting('server_version')::text as version_text,
  pg_is_in_recovery()::boolean as standby,
  extract(epoch from clock_timestamp() - pg_postmaster_start_time())::double precision as up_seconds;

-- name: NotificationQueue :one
-- Returns which share of the notification queue is used, from 0 to 1.
select pg_notification_queue_usage()::double precision as share;

-- name: Settings :many
-- Returns the settings of roles and of this database, then those of this session that no row of the first kind
-- explains. Booleans read true or false, times in milliseconds.
with stored as (
  select split_part(c, '=', 1) as name, substr(c, strpos(c, '=') + 1) as value,
    s.setrole in (0, (select u.oid from pg_catalog.pg_roles u where u.rolname = session_user)) as mine,
    coalesce(nullif(concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)), ''),
      'role all') as scope,
    case when p.context = 'superuser' or r.rolname is null and d.datname is null then ''
      when r.rolname is null then quote_ident(pg_get_userbyid(d.datdba)) else quote_ident(r.rolname) end as owner
  from pg_catalog.pg_db_role_setting s left join pg_catalog.pg_roles r on r.oid = s.setrole
  left join pg_catalog.pg_database d on d.oid = s.setdatabase
  cross join unnest(s.setconfig) as c left join pg_catalog.pg_settings p on p.name = split_part(c, '=', 1)
  where s.setdatabase in (0, (select oid from pg_catalog.pg_database where datname = current_database()))),
known as (
  select name, value, scope, owner from stored
  union all
  select p.name, p.reset_val, '', '' from pg_catalog.pg_settings p where p.name not in (
    select name from stored where mine))
select k.name::text as name, k.scope::text as scope, k.owner::text as owner,
  case when p.vartype = 'bool' then k.value::boolean::text
    when p.unit = 'ms' then (extract(epoch from
      (case when k.value ~ '^[0-9.]+$' then k.value || 'ms' else k.value end)::interval) * 1000)::bigint::text
    else lower(k.value collate "C") end::text as value
from known k left join pg_catalog.pg_settings p on p.name = k.name
where k.name = any (@names::text[]) order by k.scope desc, k.name;

-- name: Tables :many
-- Finds what changes how statements on our tables behave, or whether rows are kept.
with ours as (
  select c.oid, n.nspname, c.relname, c.relpersistence, c.relreplident, format('%I.%I', n.nspname, c.relname) as name,
    exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary) as has_key,
    exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisreplident) as has_replident
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname in ('core', 'platform', 'worlds') and c.relkind in ('r', 'p'))
select 'critical'::text as state,
  format('rule %I on %s rewrites statements: events may be lost, or never settle', r.rulename, o.name)::text as problem,
  format('as spectral_owner, run `drop rule %I on %s;`; then restart the workers, whose sessions keep old plans',
    r.rulename, o.name)::text as fix
from pg_catalog.pg_rewrite r join ours o on o.oid = r.ev_class
union all
select 'critical', o.name || ' is unlogged: a crash of the server empties it',
  format('as spectral_owner, run `alter table %s set logged;`', o.name)
from ours o where o.relpersistence = 'u'
union all
select 'critical', format('foreign key %I of %I.%I refers to %s: rows past their retention cannot be deleted',
    k.conname, n.nspname, f.relname, o.name),
  format('as %I, run `alter table %I.%I drop constraint %I;`', pg_get_userbyid(f.relowner), n.nspname, f.relname,
    k.conname)
from pg_catalog.pg_constraint k join ours o on o.oid = k.confrelid and o.nspname = 'core'
  join pg_catalog.pg_class f on f.oid = k.conrelid
join pg_catalog.pg_namespace n on n.oid = f.relnamespace where k.contype = 'f'
union all
select 'critical', format('foreign keys of %s are not enforced, because their triggers are disabled: %s', o.name,
    string_agg(distinct k.conname, ', ' order by k.conname)),
  format('as a superuser, run `alter table %s enable trigger all;`; then look for rows that the foreign keys would '
    'have refused', o.name)
from pg_catalog.pg_trigger t join ours o on o.oid = t.tgrelid join pg_catalog.pg_constraint k on k.oid = t.tgconstraint
where t.tgisinternal and t.tgenabled <> 'O' group by o.name
union all
select 'note', format('event trigger %I of %I runs %s at %s: it may refuse or alter migrations and repairs', e.evtname,
    pg_get_userbyid(e.evtowner), e.evtfoid::regproc,
    case e.evtevent when 'login' then 'each login, that of workers too'
      else e.evtevent || coalesce(' of ' || array_to_string(e.evttags, ', '), '') end),
  format('read what the function does; to migrate without it, as a superuser, run `alter event trigger %I disable;`',
    e.evtname)
from pg_catalog.pg_event_trigger e
where e.evtenabled <> 'D' and not exists (select from pg_catalog.pg_depend d
  where d.classid = 'pg_event_trigger'::regclass and d.objid = e.oid and d.deptype = 'e')
union all
select 'critical',
  format('%s is published (%s) but has no replica identity: each update of it fails, so no event settles', o.name,
    string_agg(p.pubname, ', ')),
  format('as spectral_owner, run `alter table %s replica identity %s;`', o.name,
    case when bool_and(o.has_key) then 'default' else 'full' end)
from ours o join pg_catalog.pg_publication_tables t on t.schemaname = o.nspname and t.tablename = o.relname
join pg_catalog.pg_publication p on p.pubname = t.pubname and (p.pubupdate or p.pubdelete)
where o.relreplident = 'n' or o.relreplident = 'i' and not o.has_replident or o.relreplident = 'd' and not o.has_key
group by o.name
order by 2;

-- name: EventTypes :many
-- Compares core.event_types and core.publisher_sources with what this build declares. A generation of 0 is not known.
-- Types that a higher generation has registered stand, and this build's first start replaces those of a lower one:
-- neither is returned.
with declared as (
  select (e.t ->> 'event_type')::text as event_type, (e.t ->> 'event_version')::integer as event_version,
    (e.t ->> 'source')::text as source, (e.t ->> 'class')::text as class,
    (e.t ->> 'content_class')::text as content_class, (e.t ->> 'consumed')::boolean as consumed,
    nullif(e.t -> 'payload_schema', 'null')::jsonb as payload_schema,
    nullif(e.t -> 'payload_rules', 'null')::jsonb as payload_rules, (e.t ->> 'payload_fault')::text as payload_fault,
    (e.t ->> 'deadline')::timestamptz as deadline, (e.t ->> 'successor')::text as successor
  from jsonb_array_elements(@types::jsonb) as e(t)),
latest as (select distinct on (d.event_type) d.* from declared d order by d.event_type, d.event_version desc),
publishers(role_name, source) as (
  values ('spectral_platform', 'platform'), ('spectral_worlds', 'worlds'), ('spectral_owner', 'core')),
-- what a build of this generation has registered, or would have
ours as (
  select t.* from core.event_types t
  where @generation::bigint > 0 and (t.registered_by = @generation::bigint or t.registered_by < @generation::bigint
    and exists (select from core.live_workers w where w.generation = @generation::bigint))),
ignored as (
  select w.generation, t.event_type
  from core.live_workers w cross join lateral jsonb_object_keys(w.handlers) as h(event_type)
  join core.event_types t on t.event_type = h.event_type and not core.consumes(w.generation, t.consumed_in, t.consumed)
  group by w.generation, t.event_type),
dropped as (
  select d.event_type from latest d
  where d.consumed and not exists (select from ignored i where i.event_type = d.event_type)
    and case when @generation::bigint = 0 then exists (select from core.event_types t
        where (t.event_type, t.event_version) = (d.event_type, d.event_version) and not t.consumed
          and not exists (select from jsonb_each_text(t.consumed_in) as g where g.value = 'true'))
      else exists (select from core.event_types t
          where t.event_type = d.event_type and (t.consumed_in ->> cast(@generation::bigint as text))::boolean is false)
        or exists (select from ours t
          where t.event_type = d.event_type and not core.consumes(@generation::bigint, t.consumed_in, t.consumed)) end),
different as (
  select t.event_type, t.event_version, t.registered_by, coalesce(d.source <> t.source, false) as refused,
    array_to_string(array[
      case when d.source <> t.source then format('source %s, not %s', t.source, d.source) end,
      case when d.event_type is not null and d.class is distinct from t.class
        then format('class %s, not %s', coalesce(t.class, @default_class::text), coalesce(d.class,
          @default_class::text)) end,
      case when d.content_class <> t.content_class
        then format('content class %s, not %s', t.content_class, d.content_class) end,
      case when not d.consumed and core.consumes(nullif(@generation::bigint, 0), t.consumed_in, t.consumed)
        then 'waiting for a handler, not settled as it is published' end,
      case when d.event_type is not null and (d.payload_schema, d.payload_rules, d.payload_fault::jsonpath::text)
          is distinct from (t.payload_schema, t.payload_rules, t.payload_fault::text) then 'another payload' end,
      case when (l.deadline, l.successor) is distinct from (t.deadline, t.successor) then format('%s, in this build %s',
        coalesce('deprecated from ' || t.deadline || ' for ' || t.successor, 'not deprecated'),
        coalesce('deprecated from ' || l.deadline || ' for ' || l.successor, 'not deprecated')) end], '; ') as how
  from core.event_types t join latest l on l.event_type = t.event_type
  left join declared d on (d.event_type, d.event_version) = (t.event_type, t.event_version))
select 'critical'::text as state,
  'no event type is registered: all publishing is refused (SP016)'::text as problem, @register::text as fix
where not exists (select from core.event_types)
union all
select 'critical', format('%s version %s is in this build but not registered: publishing it is refused (SP016)',
  d.event_type, d.event_version), @register::text
from declared d where exists (select from core.event_types) and not exists (select from core.event_types t
  where (t.event_type, t.event_version) = (d.event_type, d.event_version))
union all
select 'critical', format('%s is registered as not consumed in generation %s, although live workers of it handle the '
    'type: what is published settles unhandled and is lost', i.event_type, i.generation),
  format('as spectral_owner, run `update core.event_types set consumed = true, consumed_in = consumed_in || '
    'jsonb_build_object(''%s'', true) where event_type = %L;`', i.generation, i.event_type)
from ignored i
union all
select 'critical', d.event_type || ' is registered as not consumed, although this build handles the type: what is '
    'published settles unhandled and is lost',
  case @generation::bigint when 0 then format('as spectral_owner, run `update core.event_types set consumed = true '
    'where event_type = %L;`; then restart the workers', d.event_type) else @again::text end
from dropped d
union all -- registered by this build's generation, but otherwise; where the source differs, publishing fails
select case when d.refused then 'critical' else 'warning' end,
  format('%s version %s is not registered as this build, of generation %s, has it: %s', d.event_type, d.event_version,
    @generation::bigint, d.how),
  @again::text || '; if the difference comes back, another build runs as this generation: give one of them another '
    'number'
from different d join ours o on (o.event_type, o.event_version) = (d.event_type, d.event_version) where d.how <> ''
union all
select 'note', format('%s version %s is not registered as this build has it: %s; it was registered by %s', d.event_type,
    d.event_version, d.how, coalesce('generation ' || nullif(d.registered_by, 0), 'no generation')),
  'to learn whether that is right, put this build''s generation for N in `SPECTRAL_GENERATION=N workers doctor tables`'
from different d where @generation::bigint = 0 and d.how <> ''
union all
select 'note', format('%s: registered by generation %s, which does not exist; no lower generation replaces that',
    string_agg(t.event_type || ' version ' || t.event_version, ', ' order by t.event_type, t.event_version),
    t.registered_by),
  format('if generation %1$s will not be started: as spectral_owner, run `update core.event_types set registered_by = '
    '0 where registered_by = %1$s;`, then `workers migrate up` with the build that runs', t.registered_by)
from core.event_types t
where t.registered_by > 0 and not exists (select from core.deployments p where p.generation = t.registered_by)
  and exists (select from core.deployments) -- none are registered before the first worker starts
group by t.registered_by
union all
select 'critical', format('%s may not publish as %s: its events are refused (SP017)', p.role_name, p.source),
  format('as spectral_owner, run `insert into core.publisher_sources (role_name, source) values (%L, %L);`',
    p.role_name, p.source)
from publishers p
where not exists (select from core.publisher_sources s where (s.role_name, s.source) = (p.role_name, p.source))
union all
select case when r.oid is null then 'note' else 'warning' end,
  format('%s may publish as %s, which this build does not give it', s.role_name, s.source) ||
    case when r.oid is null then '; the role does not exist, but one of that name could publish' else '' end,
  format('as spectral_owner, run `delete from core.publisher_sources where role_name = %L and source = %L;`',
    s.role_name, s.source)
from core.publisher_sources s left join pg_catalog.pg_roles r on r.rolname = s.role_name
where (r.oid is null or s.role_name = any (@roles::text[]))
  and not exists (select from publishers p where (s.role_name, s.source) = (p.role_name, p.source))
order by 2;

-- name: Logins :many
-- Finds who may do more than their group does.
with groups as (
  select oid, rolname from pg_catalog.pg_roles
  where rolname = any (@roles::text[]) or starts_with(rolname, 'spectral_') and not rolcanlogin),
members as (
  select distinct r.oid, r.rolname from pg_catalog.pg_roles r join groups g on pg_has_role(r.oid, g.oid, 'member')
  where r.rolcanlogin and not r.rolsuper and r.oid not in (select oid from groups)),
migrating as (select datdba as oid from pg_catalog.pg_database where datname = current_database()),
-- the grants that make members of a role that may do everything; the check of privileges has those to our groups
grants as (
  select m.roleid::regrole::text as above, m.member, m.member::regrole::text as name,
    m.roleid in (select oid from migrating) as migrates,
    case when current_setting('server_version_num')::integer >= 160000 then m.grantor::regrole::text end as grantor
  from pg_catalog.pg_auth_members m
  where (m.roleid::regrole::text in ('spectral_owner', 'pg_write_all_data') and m.member not in (select oid
    from migrating)
      or m.roleid in (select oid from migrating) and pg_has_role(m.roleid, 'spectral_owner', 'member'))
    and m.member not in (select oid from groups)),
schemas as (select oid, nspname from pg_catalog.pg_namespace where nspname in ('core', 'platform', 'worlds')),
acls (what, on_what, columns, owner, acl) as (
  select 'schema ' || n.nspname, 'schema ' || n.nspname, '', n.nspowner, n.nspacl
  from pg_catalog.pg_namespace n join schemas s on s.oid = n.oid
  union all
  select format('%s.%I', s.nspname, c.relname),
    format('%s %s.%I', case c.relkind when 'S' then 'sequence' else 'table' end, s.nspname, c.relname), '', c.relowner,
      c.relacl
  from pg_catalog.pg_class c join schemas s on s.oid = c.relnamespace
  union all
  select format('%s.%I (%I)', s.nspname, c.relname, a.attname), format('table %s.%I', s.nspname, c.relname),
    format(' (%I)', a.attname), c.relowner, a.attacl
  from pg_catalog.pg_attribute a join pg_catalog.pg_class c on c.oid = a.attrelid
    join schemas s on s.oid = c.relnamespace
  union all
  select 'function ' || p.oid::regprocedure, 'function ' || p.oid::regprocedure, '', p.proowner, p.proacl
  from pg_catalog.pg_proc p join schemas s on s.oid = p.pronamespace)
select format('role %I has %s on %s by itself, not through its group', r.rolname,
    string_agg(lower(x.privilege_type collate "C"), ', ' order by x.privilege_type), a.what)::text as problem,
  format('as spectral_owner, run `revoke %s on %s from %I cascade;`; then grant it the group that it needs',
    string_agg(lower(x.privilege_type collate "C") || a.columns, ', ' order by x.privilege_type), a.on_what,
    r.rolname)::text as fix
from acls a cross join lateral aclexplode(a.acl) x join pg_catalog.pg_roles r on r.oid = x.grantee
where x.grantee <> a.owner and r.oid not in (select oid from groups) group by r.rolname, a.what, a.on_what
union all
select format('login %s is a member of %s%s%s: it may rewrite and erase events',
    string_agg(distinct m.rolname, ', ' order by m.rolname), g.above,
    case when g.migrates then ', which migrates' else '' end,
    case when bool_and(g.member = m.oid) then '' else ', through ' || g.name end),
  format('as %s, run `%s`', case when count(distinct g.grantor) = 0 then 'the login that migrates'
      when count(distinct g.grantor) = 1 then 'a superuser or ' || min(g.grantor) else 'a superuser' end,
    string_agg(distinct format('revoke %s from %s', g.above, g.name) || coalesce(' granted by ' || g.grantor, '') ||
      ' cascade;', ' '))
from members m join grants g on pg_has_role(m.oid, g.member, 'member') where m.oid not in (select oid from migrating)
group by g.above, g.member, g.name, g.migrates
union all
select format('login %I, a member of %s, is a superuser: nothing is protected from it', r.rolname, g.rolname),
  format('as a superuser, run `alter role %I nosuperuser;`', r.rolname)
from pg_catalog.pg_roles r join pg_catalog.pg_auth_members m on m.member = r.oid join groups g on g.oid = m.roleid
where r.rolsuper and r.oid not in (select oid from groups)
order by 1 limit @at_most::integer;

-- name: Indexes :many
select i.indexrelid::regclass::text as name, format('index %I on %I.%I', x.relname, n.nspname,
  c.relname)::text as subject,
  exists (select from pg_catalog.pg_constraint k where k.conindid = i.indexrelid)::boolean as of_constraint,
  (i.indisvalid and i.indisready and i.indislive)::boolean as valid
from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indrelid
  join pg_catalog.pg_class x on x.oid = i.indexrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('core', 'platform', 'worlds') order by 1;

-- name: Connections :one
-- A database_limit below 0 is none.
select current_setting('max_connections')::integer as max_connections,
  (current_setting('superuser_reserved_connections')::integer
    + coalesce(current_setting('reserved_connections', true)::integer, 0))::integer as reserved,
  count(*) filter (where a.usesysid is not null)::integer as used,
  (select d.datconnlimit from pg_catalog.pg_database d where d.datname = current_database())::integer as database_limit,
  count(*) filter (where a.usesysid is not null and a.datname = current_database())::integer as used_in_database
from pg_catalog.pg_stat_activity a;

-- name: Generations :many
-- Seconds of 0: the generation is not draining, or not closed.
select s.generation::bigint as generation, s.status::text as status,
  (s.due + s.scheduled + s.in_flight)::bigint as events, s.workers::bigint as workers,
  s.publishing_default::boolean as publishing_default,
  coalesce(extract(epoch from statement_timestamp() - s.draining_at), 0)::double precision as draining_seconds,
  coalesce(extract(epoch from statement_timestamp() - s.closed_at), 0)::double precision as closing_seconds
from core.generation_status() s;

-- name: UnregisteredGenerations :many
-- Returns generations that live workers have and core.deployments has not.
select w.generation::bigint as generation, count(*)::integer as workers from core.live_workers w
where not exists (select from core.deployments d where d.generation = w.generation)
group by w.generation order by w.generation;

-- name: Pauses :many
select p.event_type, p.generation, (p.paused_by || coalesce(': ' || p.reason, ''))::text as paused_by,
  extract(epoch from statement_timestamp() - p.paused_at)::double precision as seconds
from core.paused_types p order by p.generation, p.event_type;

-- name: PendingTypes :many
-- Returns the types with due events. Due counts them up to @count_up_to, seconds tell since when the oldest is due; the
-- last columns are its id and error.
-- Handlers are those of live workers of the generation; adopter is the highest other live generation with a live worker
-- that handles the type, or 0.
select k.generation::bigint as generation, k.event_type::text as event_type,
  (select count(*) from (select from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null and o.available_at <= statement_timestamp()
     and o.id not in (select q.id from core.quarantined_events q)
     limit @count_up_to::integer) l)::integer as due,
  extract(epoch from statement_timestamp() - d.available_at)::double precision as seconds,
  coalesce((select p.status from core.deployments p where p.generation = k.generation), 'unknown')::text as status,
  (select count(*) from core.live_workers w where w.generation = k.generation)::integer as live,
  coalesce((select string_agg(w.name, ', ' order by w.name) from core.live_workers w
     where w.generation = k.generation and jsonb_exists(w.handlers, k.event_type)), '')::text as handlers,
  exists (select from core.paused_types p
    where p.generation = k.generation and p.event_type = k.event_type)::boolean as paused,
  exists (select from core.event_types t where t.event_type = k.event_type)::boolean as registered,
  coalesce((select max(t.class) from core.event_types t where t.event_type = k.event_type),
    @default_class::text)::text as class,
  coalesce((select max(w.generation) from core.live_workers w join core.deployments p using (generation)
     where w.generation <> k.generation and p.status = 'live' and jsonb_exists(w.handlers, k.event_type)),
    0)::bigint as adopter, d.id as oldest, coalesce(split_part(d.last_error, E'\n', 1), '')::text as error
from core.pending_types() k cross join lateral (
  select o.available_at, o.id, o.last_error from core.outbox o
  where o.generation = k.generation and o.event_type = k.event_type
    and o.status = 'pending' and o.deleted_at is null and o.id not in (select q.id from core.quarantined_events q)
  order by o.available_at limit 1) d
where d.available_at <= statement_timestamp() order by k.generation, k.event_type;

-- name: StampedAhead :many
-- Returns the types with pending events that were created in the future, by the database's clock: how many among the
-- first @up_to that are not due, the first of them, and how far the last is ahead.
select count(*)::integer as events, k.event_type::text as event_type,
  (array_agg(o.id order by o.created_at))[1]::uuid as first_id,
  max(extract(epoch from o.created_at - statement_timestamp()))::double precision as seconds
from core.pending_types() k cross join lateral (
  select o.id, o.created_at from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
    and o.status = 'pending' and o.deleted_at is null and o.available_at > statement_timestamp() + interval '1 minute'
  order by o.available_at limit @up_to::integer) o
where o.created_at > statement_timestamp() + interval '1 minute'
group by k.event_type
order by k.event_type;

-- name: Misrouted :many
-- Returns pending events whose channel is not the one that workers of their type listen on, among the first @up_to
-- events of each type.
select count(*)::integer as events, k.event_type::text as event_type, k.generation::bigint as generation,
  o.channel::text as channel, x.expected::text as expected
from core.pending_types() k cross join lateral (
  select 'outbox_gen_' || k.generation || coalesce('_' || max(t.class), '') as expected
  from core.event_types t where t.event_type = k.event_type) x cross join lateral (
  select o.channel from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
    and o.status = 'pending' and o.deleted_at is null order by o.available_at limit @up_to::integer) o
where o.channel <> x.expected
group by k.generation, k.event_type, o.channel, x.expected order by k.generation, k.event_type, o.channel;

-- name: IdleClasses :many
-- Returns processing classes with consumed event types that no live worker of a generation runs, though workers live.
select d.generation::bigint as generation, coalesce(t.class, @default_class::text)::text as class,
  string_agg(t.event_type, ', ' order by t.event_type)::text as event_types
from core.deployments d cross join (select distinct t.event_type, t.class, t.consumed_in from core.event_types t) t
where d.status = 'live' and coalesce((t.consumed_in ->> d.generation::text)::boolean, false)
  and exists (select from core.live_workers w where w.generation = d.generation)
group by d.generation, t.class
having not exists (select from core.live_workers w
  where w.generation = d.generation and jsonb_exists_any(w.handlers, array_agg(t.event_type)))
order by 1, 2;

-- name: Workers :one
-- Dead ones are those whose work no live worker has recovered for 5 minutes.
select (select count(*) from core.live_workers)::integer as live,
  (select count(*) from core.workers w where w.gone_at < statement_timestamp() - interval '5 minutes' and not w.stopping
  )::integer as dead;

-- name: Leases :one
-- Overdue are leases that ran out more than @grace_seconds ago. Ahead are those claimed in the future.
select count(*)::integer as in_flight, count(*) filter (where l.over > @grace_seconds::integer)::integer as overdue,
  count(*) filter (where l.over < -l.lease - @grace_seconds::integer)::integer as ahead,
  coalesce(max(l.over), 0)::double precision as longest_seconds,
  coalesce(string_agg(distinct l.claimed_by, ', ') filter (where l.over > @grace_seconds::integer), '')::text as held_by
from (
  select extract(epoch from statement_timestamp() - coalesce(o.claimed_at, o.created_at))::double precision
      - o.lease_seconds as over, o.claimed_by, o.lease_seconds as lease
  from core.outbox o where o.status = 'in_flight' and o.deleted_at is null
    and o.id not in (select q.id from core.quarantined_events q)) l;

-- name: ReapLocks :many
-- Returns the sessions that keep the advisory lock of core.outbox_reap, which holds it for a moment.
select l.pid::integer as pid, coalesce(a.usename, 'unknown')::text as login,
  coalesce(nullif(a.application_name, ''), 'unnamed')::text as application
from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
  and (l.classid::bigint << 32 | l.objid::bigint) = 5583017264419803127
  and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
  and (a.state like 'idle%' or a.xact_start < statement_timestamp() - make_interval(secs => @grace_seconds::integer))
group by l.pid, a.usename, a.application_name order by l.pid;

-- name: OpenBreakers :many
-- Counts what waits up to @count_up_to.
select b.handler_name, b.generation, b.opened_by, b.cause, b.forced,
  extract(epoch from statement_timestamp() - b.opened_at)::double precision as seconds,
  (select count(*) from (select from core.outbox o where o.generation = b.generation and o.waiting_for = b.handler_name
    and o.status = 'pending' and o.deleted_at is null limit @count_up_to::integer) w)::integer as waiting
from core.breakers b order by b.opened_at;

-- name: Operations :many
select o.id, o.name, o.total, o.created_by, o.state, coalesce(o.why, 'by ' || o.state_by)::text as why
from core.operations o where o.state in ('running', 'paused') order by o.id;

-- name: Failures :one
-- Returns how many dead letters there are, how many of the last hour, without those in muted groups of errors, and the
-- most common type and error of those.
with muted as materialized
  (select array(select g.group_id from core.error_groups g where g.muted_until > statement_timestamp()) as groups)
select count(*)::integer as failed,
  count(*) filter (where o.recent)::integer as recent,
  coalesce(mode() within group (order by o.event_type || ', ' || split_part(o.last_error, ':', 1))
    filter (where o.recent), '')::text as most
from (select k.*, k.claimed_at > statement_timestamp() - interval '1 hour'
    and (m.groups = '{}' or not core.failures_muted(k.handler_failures, m.groups)) as recent
  from core.outbox k cross join muted m) o where o.status = 'failed' and o.deleted_at is null;

-- name: Quarantined :many
-- Returns the types with quarantined events, each with its earliest one.
select distinct on (q.generation, q.event_type) q.event_type, q.generation,
  count(*) over (partition by q.generation, q.event_type)::integer as events, q.id, q.reason
from core.quarantined_events q join core.outbox o on o.id = q.id and o.occurred_at = q.occurred_at
where o.status in ('pending', 'in_flight') and o.deleted_at is null
order by q.generation, q.event_type, q.quarantined_at;

-- name: ReusedKeys :many
-- Returns, by type, the delivered events of the last day for which a handler had nothing to do, because it had handled
-- another event of the same key, whose payload differs. It reads only the latest @up_to events.
with recursive known(name) as (
  (select h.handler_name from core.event_handled h order by h.handler_name limit 1)
  union all
  select (select h.handler_name from core.event_handled h where h.handler_name > k.name order by h.handler_name limit 1)
  from known k where k.name is not null),
latest as materialized (
  select o.id, o.event_type, o.status, o.created_at, o.idempotency_key, o.payload
  from core.outbox o order by o.id desc limit @up_to::integer)
select l.event_type::text as event_type, count(distinct l.id)::integer as events, max(l.id::text)::text as latest
from latest l cross join known k cross join lateral
  (select h.event_id, h.event_type from core.event_handled h
   where h.handler_name = k.name and h.idempotency_key = l.idempotency_key offset 0) h
where l.status = 'delivered' and l.idempotency_key <> l.id::text
  and l.created_at > statement_timestamp() - interval '1 day' and h.event_id <> l.id and h.event_type = l.event_type
  and exists (select from core.outbox x where x.id = h.event_id and x.payload <> l.payload)
group by l.event_type order by 2 desc, 1;

-- name: Retention :one
-- Returns what retention has done. Swept_seconds below 0: it has never swept. Workers are live ones that registered
-- more than @least_seconds ago. Hidden are tombstones of pending or in_flight events among the latest @tombstones,
-- because no index has them.
select coalesce(s.policy_fault, '')::text as policy_fault, s.failed_expiring::integer as failed_expiring,
  coalesce(extract(epoch from s.failed_expire_first_at - statement_timestamp()),
    0)::double precision as expire_first_seconds,
  coalesce((select p.active_ttl_days from core.retention_policies p
    where p.subject = 'outbox_row' and p.content_class = '*'), 0)::integer as outbox_days,
  coalesce(extract(epoch from statement_timestamp() - s.swept_at), -1)::double precision as swept_seconds,
  (select count(*) from core.live_workers w
    where w.registered_at < statement_timestamp() - make_interval(secs => @least_seconds::integer))::integer as workers,
  (select count(*) from (select o.status from core.outbox o where o.deleted_at is not null
    order by o.deleted_at desc limit @tombstones::integer) t where t.status in ('pending',
      'in_flight'))::integer as hidden
from core.retention_status(@warn_days::integer) s;

-- name: Snapshots :many
-- Returns what keeps dead rows from being removed, and how to end it, the oldest first. Seconds below 0 are not known.
select h.holder::text as holder, h.fix::text as fix, h.ids::bigint as ids,
  coalesce(h.seconds, -1)::double precision as seconds
from (
  select format('session %s of %s (%s, %s)', a.pid, coalesce(quote_ident(a.usename), a.backend_type),
      coalesce(nullif(a.application_name, ''), 'no application name'),
      coalesce(a.state, 'state not visible')) as holder,
    format('as %s, a member of pg_signal_backend or a superuser, run `select pg_terminate_backend(%s);`',
      coalesce(quote_ident(a.usename), 'its login'), a.pid) as fix,
    age(a.backend_xmin)::bigint as ids, extract(epoch from clock_timestamp() - a.xact_start) as seconds
  from pg_catalog.pg_stat_activity a
  where a.backend_xmin is not null and a.pid <> pg_backend_pid()
    and coalesce(a.backend_type, '') not in ('walsender', 'autovacuum worker')
  union all
  select format('prepared transaction %L of %I', p.gid, p.owner),
    format('as %I or a superuser, in database %I, run `rollback prepared %L;`', p.owner, p.database, p.gid),
    age(p.transaction)::bigint, extract(epoch from clock_timestamp() - p.prepared)
  from pg_catalog.pg_prepared_xacts p
  union all
  select format('replication slot %L', s.slot_name), format('bring its consumer back; or, as a login with REPLICATION '
      'or a superuser, run `select pg_drop_replication_slot(%L);`', s.slot_name),
    greatest(age(s.xmin), age(s.catalog_xmin))::bigint, null
  from pg_catalog.pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
  union all
  select format('standby %s, through hot_standby_feedback,', r.application_name), 'end the long query on the standby',
    age(r.backend_xmin)::bigint, null
  from pg_catalog.pg_stat_replication r where r.backend_xmin is not null) h
order by h.ids desc, h.seconds desc nulls last;

-- name: Sessions :one
-- Counts the sessions whose state this login may not see, and those that do not track it: of those that hold a
-- snapshot, or else of those of this database.
select count(*) filter (where a.query = '<insufficient privilege>')::integer as hidden,
  count(*) filter (where a.state = 'disabled')::integer as untracked
from pg_catalog.pg_stat_activity a
where a.usesysid is not null and a.pid <> pg_backend_pid()
  and case when @snapshots::boolean then a.backend_xmin is not null else a.datname = current_database() end;

-- name: Blockers :many
-- Returns sessions that idle in a transaction of this database, and sessions that others wait for and that do not wait
-- themselves; both for longer than @idle_seconds.
with waiting as (
  select l.pid, max(extract(epoch from clock_timestamp() - l.waitstart))::double precision as seconds
  from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a on a.pid = l.pid
  where not l.granted and l.waitstart < clock_timestamp() - make_interval(secs => @idle_seconds::double precision)
    and a.datname = current_database() group by l.pid),
blocking as (
  select b.pid, count(*) as sessions, max(w.seconds) as longest
  from waiting w cross join lateral unnest(pg_blocking_pids(w.pid)) as b(pid)
  where b.pid <> 0 and cardinality(pg_blocking_pids(b.pid)) = 0 group by b.pid)
select a.pid::integer as pid, coalesce(a.usename::text, a.backend_type)::text as login,
  coalesce(nullif(a.application_name, ''), 'no application name')::text as application, coalesce(a.state,
    '')::text as state,
  case when a.state like 'idle in transaction%' then extract(epoch from clock_timestamp() - a.state_change)
    else 0 end::double precision as idle_seconds,
  coalesce(b.sessions, 0)::integer as waiting, coalesce(b.longest, 0)::double precision as longest_seconds
from pg_catalog.pg_stat_activity a left join blocking b on b.pid = a.pid
where b.pid is not null or a.datname = current_database() and a.state like 'idle in transaction%'
  and a.state_change < clock_timestamp() - make_interval(secs => @idle_seconds::double precision)
order by longest_seconds desc, idle_seconds desc limit @at_most::integer;

-- name: Prepared :many
-- Returns the prepared transactions of this database, as literals.
select quote_literal(gid)::text as gid from pg_catalog.pg_prepared_xacts where database = current_database()
order by prepared limit @at_most::integer;

-- name: Vacuum :many
-- Returns our tables. Off is the option that turns autovacuum off for one, empty for none.
select (s.schemaname || '.' || s.relname)::text as name, s.n_dead_tup::bigint as dead, s.n_live_tup::bigint as live,
  (coalesce((select split_part(o, '=', 2)::double precision from unnest(c.reloptions) as o
      where o like 'autovacuum_vacuum_threshold=%'), current_setting('autovacuum_vacuum_threshold')::double precision)
    + greatest(c.reltuples, 0) * coalesce((select split_part(o, '=', 2)::double precision from unnest(c.reloptions) as o
      where o like 'autovacuum_vacuum_scale_factor=%'),
      current_setting('autovacuum_vacuum_scale_factor')::double precision))::double precision as threshold,
  coalesce((select v.name from (values ('autovacuum_enabled', c.reloptions), ('toast.autovacuum_enabled',
      (select t.reloptions from pg_catalog.pg_class t where t.oid = c.reltoastrelid))) as v(name, options)
    cross join lateral unnest(v.options) as option
    where split_part(option, '=', 1) = 'autovacuum_enabled' and not split_part(option, '=', 2)::boolean
    order by 1 limit 1), '')::text as off,
  age(c.relfrozenxid)::bigint as age, current_setting('autovacuum_freeze_max_age')::bigint as max_age,
  (s.schemaname = 'core' and exists (select from core.retention_policies r
    where r.swept_at > statement_timestamp() - interval '1 hour'))::boolean as swept_lately
from pg_catalog.pg_stat_user_tables s join pg_catalog.pg_class c on c.oid = s.relid
where s.schemaname in ('core', 'platform', 'worlds') and c.relkind <> 'p' order by 1; -- which has no rows itself

-- name: OutboxWaits :many
-- Returns how many sessions now wait for locks of core.outbox, its partitions or core.event_handled for longer than
-- @lock_seconds, and how many for the lock that a commit takes to notify for longer than @notify_seconds. A session
-- that waits for a row holds or awaits its tuple lock. All logins see pg_locks whole.
select w.notify::boolean as notify, count(*)::integer as sessions,
  max(w.seconds)::double precision as longest_seconds
from (
  select bool_or(l.notify) as notify, extract(epoch from clock_timestamp() - min(l.waitstart)) as seconds
  from (
    select k.pid, k.waitstart, not k.granted and k.locktype = 'object' and k.objid = 0
        and k.classid = 'pg_catalog.pg_database'::regclass as notify,
      (not k.granted or k.locktype = 'tuple') and exists (select from pg_catalog.pg_database d
          where d.oid = k.database and d.datname = current_database())
        and (k.relation in ('core.outbox'::regclass, 'core.event_handled'::regclass) or k.relation in
          (select i.inhrelid from pg_catalog.pg_inherits i where i.inhparent = 'core.outbox'::regclass)) as ours
    from pg_catalog.pg_locks k) l
  group by l.pid having bool_or(l.notify or l.ours)) w
where w.seconds > case when w.notify then @notify_seconds::double precision else @lock_seconds::double precision end
group by w.notify order by w.notify;

-- name: Scale :one
-- Returns the size of core.outbox and how long 99 % of events took to settle, in the hours of the last week with at
-- least @least_events events; slow are the hours in which that was longer than @slow_ms.
select coalesce(t.rows, 0)::double precision as rows, pg_size_pretty(t.bytes)::text as size,
  exists (select from pg_catalog.pg_partitioned_table p
    where p.partrelid = 'core.outbox'::regclass)::boolean as partitioned,
  coalesce((select h.p99_ms from core.delivery_latency_hours h order by h.hour desc limit 1), 0)::bigint as last_p99,
  coalesce(w.worst, 0)::bigint as worst_p99, w.hours::integer as hours, w.slow::integer as slow_hours
from (
  select sum(greatest(c.reltuples, 0)) as rows, sum(pg_total_relation_size(c.oid)) as bytes
  from pg_catalog.pg_class c where c.oid = 'core.outbox'::regclass
    or c.oid in (select i.inhrelid from pg_catalog.pg_inherits i where i.inhparent = 'core.outbox'::regclass)) t
cross join (
  select max(h.p99_ms) as worst, count(*) as hours, count(*) filter (where h.p99_ms > @slow_ms::bigint) as slow
  from core.delivery_latency_hours h
  where h.events >= @least_events::bigint and h.hour > now() - interval '7 days') w;

-- name: Partitions :one
-- Returns the state of a change of core.outbox to partitions or back: begun is the constraint that an unfinished one
-- left, or empty; undo_pending, whether the way back is unfinished. days_ahead is when the last month ends, -1 without
-- partitions, and rest about how many events are in the partition of all other times.
select coalesce((select pg_get_constraintdef(k.oid) from pg_catalog.pg_constraint k
    where k.conrelid = 'core.outbox'::regclass and k.conname = 'outbox_before'), '')::text as begun,
  (to_regclass('core.outbox_partitioned') is not null)::boolean as undo_pending,
  coalesce((select extract(epoch from max(m.ends_at) - now()) / 86400 from core.outbox_months() m),
    case when exists (select from pg_catalog.pg_partitioned_table p where p.partrelid = 'core.outbox'::regclass)
      then 0 else -1 end)::double precision as days_ahead,
  (select count(*) from core.outbox_months())::integer as months,
  coalesce(pg_stat_get_live_tuples(to_regclass('core.outbox_rest')), 0)::bigint as rest;

-- name: RelayPath :one
-- Seconds since the path was switched; 0: never.
select r.path, coalesce(extract(epoch from statement_timestamp() - r.switched_at), 0)::double precision as seconds
from core.relay r;

-- name: RelayedTypes :many
-- Returns the types with events that a broker has: how many, up to @count_up_to, the age of the first in seconds, and
-- how many live workers of the generation handle the type.
select t.generation::bigint as generation, t.event_type::text as event_type, f.events::integer as events,
  f.seconds::double precision as seconds,
  (select count(*) from core.live_workers w
   where w.generation = t.generation and jsonb_exists(w.handlers, t.event_type))::integer as workers
from core.relayed_types() t cross join lateral (
  select count(*) as events, extract(epoch from statement_timestamp() - min(r.relayed_at)) as seconds
  from (select o.relayed_at from core.outbox o where o.generation = t.generation and o.event_type = t.event_type
      and o.status = 'relayed' and o.deleted_at is null
    order by o.relayed_at limit @count_up_to::integer) r) f
order by t.generation, t.event_type;
