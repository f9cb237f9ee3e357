-- Returns the effective privileges, a line each, of the schemas $1 and the roles $2. A null ACL stands for acldefault,
-- by which PUBLIC may execute functions. It leaves out what an owner may do, unless that was revoked; the USAGE of
-- PUBLIC on types, which only lets columns have them; and grants to other logins.
with
ours as (
  -- a login may be called spectral_something: it is not a group of ours
  select oid, rolname from pg_roles
  where rolname = any ($2) or (starts_with(rolname, 'spectral_') and not rolcanlogin)
),
grantees as (
  select oid, quote_ident(rolname) as name from ours union all select 0, 'PUBLIC'
),
schemas as (
  select n.oid, n.nspname, n.nspowner, n.nspacl from pg_namespace n
  where n.nspname = any ($1) or n.nspowner in (select oid from ours)
),
relations as (
  select c.oid, c.relowner, c.relacl, c.relkind,
         format('%I.%I', s.nspname, c.relname) as name,
         case c.relkind when 'S' then 'sequence' when 'v' then 'view' when 'm' then 'materialized view'
           else 'table' end as kind
  from pg_class c join schemas s on s.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
),
-- everything that has an owner and an ACL
objects (description, owner, acl) as (
  select format('schema %I', nspname), nspowner, coalesce(nspacl, acldefault('n', nspowner)) from schemas
  union all
  select kind || ' ' || name, relowner,
         coalesce(relacl, acldefault((case relkind when 'S' then 's' else 'r' end)::"char", relowner))
  from relations
  union all
  select format('function %I.%I(%s)', s.nspname, p.proname, oidvectortypes(p.proargtypes)), p.proowner,
         coalesce(p.proacl, acldefault('f', p.proowner))
  from pg_proc p join schemas s on s.oid = p.pronamespace
),
-- goose's schema and table, and the database, belong to the migrating login
others (description, owner, acl, whole) as (
  select 'schema spectral_goose', n.nspowner, n.nspacl, acldefault('n', n.nspowner) from pg_namespace n
  where n.nspname = 'spectral_goose'
  union all
  select 'table spectral_goose.goose_db_version', c.relowner, c.relacl, acldefault('r', c.relowner) from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'spectral_goose' and c.relname = 'goose_db_version' and c.relkind = 'r'
  union all
  select 'the database', d.datdba, d.datacl, acldefault('d', d.datdba) from pg_database d
    where d.datname = current_database()
),
-- what owners may do, unless it was revoked
owned (description, owner, acl, whole) as (
  select description, owner, acl, acldefault((case split_part(description, ' ', 1) when 'schema' then 'n'
    when 'function' then 'f' when 'sequence' then 's' else 'r' end)::"char", owner)
  from objects where pg_get_userbyid(owner) = 'spectral_owner'
  union all
  select description, owner, acl, whole from others where acl is not null and owner not in (select oid from pg_roles
    where rolsuper)
),
defaults as (
  select d.defaclrole, d.defaclnamespace, d.defaclobjtype, d.defaclacl from pg_default_acl d
  union all
  -- what the owner's objects get unless the defaults were changed
  select r.oid, 0, k.kind, acldefault((case k.kind when 'S' then 's' else k.kind end)::"char", r.oid)
  from pg_roles r, unnest('{r,S,f,n}'::"char"[]) as k(kind)
  where r.rolname = 'spectral_owner'
    and not exists (select from pg_default_acl d
                    where d.defaclrole = r.oid and d.defaclnamespace = 0 and d.defaclobjtype = k.kind)
)

select format('role %I', r.rolname)
  || case when r.rolcanlogin then ' login' else ' nologin' end
  || case when r.rolinherit then ' inherit' else ' noinherit' end
  || case when r.rolsuper then ' superuser' else '' end
  || case when r.rolcreaterole then ' createrole' else '' end
  || case when r.rolcreatedb then ' createdb' else '' end
  || case when r.rolreplication then ' replication' else '' end
  || case when r.rolbypassrls then ' bypassrls' else '' end
from pg_roles r join ours using (oid)

union all
-- membership; before PostgreSQL 16 the member's own attribute decides on inheriting, and SET ROLE is always allowed
select format('grant %I to %I', g.rolname, u.rolname)
  || case when bool_or(coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, u.rolinherit)) then ' inherit'
    else ' noinherit' end
  || case when bool_or(coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)) then ' set' else ' noset' end
  || case when bool_or(m.admin_option) then ' admin' else '' end
from pg_auth_members m
join pg_roles g on g.oid = m.roleid
join pg_roles u on u.oid = m.member
where m.member in (select oid from ours)
group by g.rolname, u.rolname

union all
select format('schema %I owner %I', nspname, pg_get_userbyid(nspowner)) from schemas
union all
select format('owner %I of %s', pg_get_userbyid(owner), description) from objects
where pg_get_userbyid(owner) <> 'spectral_owner' and description not like 'schema %'

union all
select 'revoked ' || string_agg(lower(w.privilege_type collate "C"), ', ' order by w.privilege_type) || ' on '
  || o.description
  || ' from its owner ' || quote_ident(pg_get_userbyid(o.owner))
from owned o, aclexplode(o.whole) w
where w.grantee = o.owner
  and not exists (select from aclexplode(o.acl) a where a.grantee = o.owner and a.privilege_type = w.privilege_type)
group by o.description, o.owner

union all
select 'grant ' || lower(a.privilege_type collate "C") || ' on ' || o.description || ' to ' || t.name
  || case when a.is_grantable then ' with grant option' else '' end
from objects o, aclexplode(o.acl) a join grantees t on t.oid = a.grantee
where a.grantee <> o.owner
union all
select 'grant ' || lower(a.privilege_type collate "C") || ' (' || quote_ident(c.attname) || ') on ' || r.kind
  || ' ' || r.name
  || ' to ' || t.name
  || case when a.is_grantable then ' with grant option' else '' end
from relations r join pg_attribute c on c.attrelid = r.oid and not c.attisdropped,
  aclexplode(c.attacl) a join grantees t on t.oid = a.grantee
where a.grantee <> r.relowner
union all
select 'grant ' || lower(a.privilege_type collate "C") || ' on ' || o.description || ' to ' || t.name
  || case when a.is_grantable then ' with grant option' else '' end
from others o, aclexplode(o.acl) a join ours on ours.oid = a.grantee join grantees t on t.oid = a.grantee
where a.grantee <> o.owner

union all
select 'default of ' || quote_ident(pg_get_userbyid(d.defaclrole)) || coalesce(' in schema '
  || quote_ident(n.nspname), '')
  || ': grant ' || lower(a.privilege_type collate "C") || ' on '
  || case d.defaclobjtype when 'r' then 'tables' when 'S' then 'sequences' when 'f' then 'functions'
       when 'n' then 'schemas' when 'T' then 'types' else 'objects of kind ' || d.defaclobjtype::text end
  || ' to ' || t.name || case when a.is_grantable then ' with grant option' else '' end
from defaults d left join pg_namespace n on n.oid = d.defaclnamespace,
  aclexplode(d.defaclacl) a join grantees t on t.oid = a.grantee
where a.grantee <> d.defaclrole
  and (a.grantee <> 0 or d.defaclnamespace in (select oid from schemas)
       or (d.defaclnamespace = 0 and d.defaclrole in (select oid from ours)))
  and not (d.defaclobjtype = 'T' and a.grantee = 0 and d.defaclnamespace = 0)
union all
select 'default of ' || quote_ident(pg_get_userbyid(d.defaclrole)) || ': revoke '
  || lower(w.privilege_type collate "C") || ' on '
  || case d.defaclobjtype when 'r' then 'tables' when 'S' then 'sequences' when 'f' then 'functions'
    else 'schemas' end || ' from its owner'
from pg_default_acl d, aclexplode(acldefault((case d.defaclobjtype when 'S' then 's'
  else d.defaclobjtype end)::"char", d.defaclrole)) w
where pg_get_userbyid(d.defaclrole) = 'spectral_owner' and d.defaclnamespace = 0
  and d.defaclobjtype in ('r', 'S', 'f', 'n') and w.grantee = d.defaclrole
  and not exists (select from aclexplode(d.defaclacl) a where a.grantee = d.defaclrole
    and a.privilege_type = w.privilege_type)
