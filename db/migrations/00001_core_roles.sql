-- +goose Up
set local lock_timeout = '500ms';

-- The group roles of the system. They guard payload, history and mistakes (docs/decisions/0005-roles.md).
--
-- Roles belong to the whole cluster, so another database, or another replica migrating at this
-- moment, may be creating the same ones: every statement is retried on the errors such a race
-- raises. Roles are never dropped: another database may still use them.
-- +goose StatementBegin
do $roles$
declare
  v_name text;
  v_tries integer := 0;
begin
  set local lock_timeout = '10s';
  foreach v_name in array array[
    'spectral_owner',      -- owns every schema, table and function
    'spectral_publisher',  -- may call the publishing functions
    'spectral_worker',     -- claims, dedups and settles; holds the context roles without inheriting them
    'spectral_operator',   -- reads the outbox
    'spectral_retention',  -- runs the retention sweep
    'spectral_platform',   -- the platform context's own tables
    'spectral_worlds'      -- the worlds context's own tables
  ] loop
    loop
      begin
        if not exists (select from pg_catalog.pg_roles where rolname = v_name) then
          execute pg_catalog.format('create role %I nologin%s', v_name,
            case v_name when 'spectral_worker' then ' noinherit' else '' end);
        end if;
        exit;
      exception
        when duplicate_object or unique_violation then
          null; -- another session created it first
        when internal_error then -- "tuple concurrently updated"
          if sqlerrm not like '%concurrently updated%' then raise; end if;
          v_tries := v_tries + 1;
          if v_tries > 100 then raise; end if;
      end;
    end loop;
  end loop;
end
$roles$;
-- +goose StatementEnd

-- +goose StatementBegin
do $members$
declare
  v_grant text[];
  v_tries integer := 0;
  v_options text;
  v_present boolean;
  v_version constant integer := pg_catalog.current_setting('server_version_num')::integer;
begin
  -- member, group, whether the member inherits the group's privileges
  foreach v_grant slice 1 in array array[
    array['spectral_worker',   'spectral_platform',  'false'],
    array['spectral_worker',   'spectral_worlds',    'false'],
    array['spectral_platform', 'spectral_publisher', 'true'],
    array['spectral_worlds',   'spectral_publisher', 'true'],
    -- the migrating login acts as the owner in each later step; a superuser needs no membership
    array[current_user::text,  'spectral_owner',     'true']
  ] loop
    loop
      begin
        exit when v_grant[1] = current_user
          and (select rolsuper from pg_catalog.pg_roles where rolname = current_user);
        -- PostgreSQL 16 made inheriting and SET ROLE options of each single membership
        if v_version >= 160000 then
          v_options := pg_catalog.format(' with inherit %s, set true', v_grant[3]);
          execute $q$
            select exists (
              select from pg_catalog.pg_auth_members m
              join pg_catalog.pg_roles r on r.oid = m.roleid
              join pg_catalog.pg_roles u on u.oid = m.member
              where u.rolname = $1 and r.rolname = $2 and m.inherit_option = $3::boolean and m.set_option)
          $q$ into v_present using v_grant[1], v_grant[2], v_grant[3];
        else
          v_options := '';
          v_present := exists (
            select from pg_catalog.pg_auth_members m
            join pg_catalog.pg_roles r on r.oid = m.roleid
            join pg_catalog.pg_roles u on u.oid = m.member
            where u.rolname = v_grant[1] and r.rolname = v_grant[2]);
        end if;
        if not v_present then
          execute pg_catalog.format('grant %I to %I', v_grant[2], v_grant[1]) || v_options;
        end if;
        exit;
      exception
        when unique_violation then
          null;
        when insufficient_privilege then -- from 16 on, creating roles does not suffice for roles that another login made
          raise exception '% may not grant % to %: a superuser or the login that created that role must', current_user, v_grant[2], v_grant[1]
            using errcode = 'insufficient_privilege', hint = pg_catalog.format('grant %I to %I%s;', v_grant[2], v_grant[1], v_options);
        when internal_error then
          if sqlerrm not like '%concurrently updated%' then raise; end if;
          v_tries := v_tries + 1;
          if v_tries > 100 then raise; end if;
      end;
    end loop;
  end loop;
end
$members$;
-- +goose StatementEnd

-- The schema core, and what a function made later allows by default: nothing to PUBLIC.
create schema core authorization spectral_owner;
set local role spectral_owner;
alter default privileges for role spectral_owner revoke execute on functions from public;
-- `make generate` writes the edition: a hash of these migrations
comment on schema core is 'The event substrate: outbox, dedup log, deployment generations. Edition 25be5a4257bf2ded';
grant usage on schema core to spectral_publisher, spectral_worker, spectral_operator, spectral_retention;

-- +goose StatementBegin
-- db/functions/uuid_v7.sql
create function core.uuid_v7() returns uuid
language sql volatile parallel safe
set search_path = pg_catalog, core, pg_temp
as $$
  select encode(
    -- a random version 4 UUID whose first six bytes become the time; 0100 + two bits = 0111
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
grant execute on function core.uuid_v7() to spectral_operator, spectral_publisher, spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/uuid_v7_floor.sql
create function core.uuid_v7_floor(p_at timestamptz) returns uuid
language sql immutable
as $$
  select (lpad(to_hex(floor(extract(epoch from p_at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
-- +goose StatementEnd

reset role;

-- Workers and operators read how far the database is migrated.
-- +goose StatementBegin
do $$
begin
  if to_regclass('spectral_goose.goose_db_version') is null then
    raise exception 'goose does not keep its versions in spectral_goose.goose_db_version'
      using hint = 'create schema spectral_goose; and run goose with -table spectral_goose.goose_db_version';
  end if;
  grant usage on schema spectral_goose to spectral_worker, spectral_operator;
  grant select on spectral_goose.goose_db_version to spectral_worker, spectral_operator;
end
$$;
-- +goose StatementEnd

-- +goose Down
set local lock_timeout = '500ms';
drop function core.uuid_v7, core.uuid_v7_floor;
drop schema core;
alter default privileges for role spectral_owner grant execute on functions to public;
-- roles belong to the cluster and stay
