-- +goose Up
set local lock_timeout = '500ms';

-- The group roles of the system. They guard payload, history and mistakes (docs/decisions/0005-roles.md).
--
-- Roles belong to the whole cluster, so another database, or another replica migrating at this
-- moment, may be creating the same ones: every statement is retried on the errors such a race
-- raises. Roles are never dropped: another database may still use them.
-- +goose StatementBegin
do $$
declare
  v_item text[]; -- a role and its attributes; or member, group and whether it inherits the group's privileges
  v_tries integer := 0;
  v_options text;
  v_present boolean;
  -- PostgreSQL 16 made inheriting and SET ROLE options of each single membership
  v_by_membership constant boolean := current_setting('server_version_num')::integer >= 160000;
  v_super constant boolean := (select r.rolsuper from pg_roles r where r.rolname = current_user);
begin
  set local lock_timeout = '10s';
  foreach v_item slice 1 in array array[
    ['spectral_owner', '', ''],              -- owns every schema, table and function
    ['spectral_publisher', '', ''],          -- may call the publishing functions
    ['spectral_worker', 'noinherit', ''],    -- claims, deduplicates, settles; has the context roles, not inherited
    ['spectral_viewer', '', ''],             -- reads all but payloads, of which it sees what is not sensitive
    ['spectral_payload_reader', '', ''],     -- reads payloads, too
    ['spectral_operator', '', ''],           -- reads the outbox and acts on events
    ['spectral_corrector', '', ''],          -- publishes corrected copies of events, too
    ['spectral_retention', '', ''],          -- runs the retention sweep
    ['spectral_platform', '', ''],           -- the platform context's own tables
    ['spectral_worlds', '', ''],             -- the worlds context's own tables
    ['spectral_worker', 'spectral_platform', 'false'],
    ['spectral_worker', 'spectral_worlds', 'false'],
    ['spectral_payload_reader', 'spectral_viewer', 'true'],
    ['spectral_operator', 'spectral_payload_reader', 'true'],
    ['spectral_corrector', 'spectral_operator', 'true'],
    ['spectral_platform', 'spectral_publisher', 'true'],
    ['spectral_worlds', 'spectral_publisher', 'true'],
    -- the migrating login acts as the owner in each later step; a superuser needs no membership
    [current_user::text, 'spectral_owner', 'true']
  ] loop
    exit when v_super and v_item[1] = current_user;
    loop
      begin
        if v_item[3] = '' then
          if not exists (select from pg_roles r where r.rolname = v_item[1]) then
            execute format('create role %I nologin %s', v_item[1], v_item[2]);
          end if;
          exit;
        end if;
        v_options := case when v_by_membership then format(' with inherit %s, set true', v_item[3]) else '' end;
        execute format('select exists (select from pg_auth_members m '
          'where m.roleid = to_regrole(%L) and m.member = to_regrole(%L)%s)',
          quote_ident(v_item[2]), quote_ident(v_item[1]),
          case when v_by_membership then format(' and m.inherit_option = %s and m.set_option', v_item[3]) else '' end)
          into v_present;
        if not v_present then
          execute format('grant %I to %I', v_item[2], v_item[1]) || v_options;
        end if;
        exit;
      exception
        when duplicate_object or unique_violation then
          null; -- another session created it first
        when insufficient_privilege then
          if v_item[3] = '' then raise; end if;
          -- from 16 on, creating roles does not suffice for roles that another login made
          raise exception '% may not grant % to %: a superuser or the login that created that role must',
              current_user, v_item[2], v_item[1]
            using errcode = 'insufficient_privilege',
              hint = format('grant %I to %I%s;', v_item[2], v_item[1], v_options);
        when internal_error then -- "tuple concurrently updated"
          v_tries := v_tries + 1;
          if sqlerrm not like '%concurrently updated%' or v_tries > 100 then raise; end if;
      end;
    end loop;
  end loop;
end
$$;
-- +goose StatementEnd

-- The schema core, and what a function made later allows by default: nothing to PUBLIC.
create schema core authorization spectral_owner;
set local role spectral_owner;
alter default privileges for role spectral_owner revoke execute on functions from public;
-- `make generate` writes the edition: a hash of these migrations
comment on schema core is 'The event system: outbox, dedup log, deployment generations. Edition 4694538f4d722f25';
grant usage on schema core to spectral_publisher, spectral_worker, spectral_operator, spectral_retention;

-- +goose StatementBegin
create function core.require_empty(variadic p_tables regclass[]) returns void language plpgsql volatile as $$
declare
  v_table regclass;
  v_filled boolean;
begin
  foreach v_table in array p_tables loop
    execute format('lock table %s in access exclusive mode', v_table);
    execute format('select exists (select from %s)', v_table) into v_filled;
    if v_filled then raise exception '% has rows, which going down would lose', v_table
      using hint = 'copy or delete them, then repeat `workers migrate down`'; end if;
  end loop;
end
$$;
create function core.uuid_v7() returns pg_catalog.uuid language sql volatile parallel safe as $$
  select (overlay(pg_catalog.lpad(pg_catalog.to_hex((extract(epoch from pg_catalog.clock_timestamp())
      operator(pg_catalog.*) 4096000)::pg_catalog.int8), 15, '0') placing '7' from 13 for 0)
    operator(pg_catalog.||) pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 20))::pg_catalog.uuid
$$;
create function core.uuid_v7_floor(p_at timestamptz) returns uuid language sql immutable as $$
  select (lpad(to_hex(floor(extract(epoch from p_at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
-- +goose StatementEnd
grant execute on function core.uuid_v7 to spectral_operator, spectral_publisher, spectral_worker;
grant execute on function core.uuid_v7_floor to spectral_operator;
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
drop function core.require_empty, core.uuid_v7, core.uuid_v7_floor;
drop schema core;
alter default privileges for role spectral_owner grant execute on functions to public;
-- roles belong to the cluster and stay
