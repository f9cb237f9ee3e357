-- core.retention_sweep(p_step, p_after, p_limit, p_run, p_swept_by) runs one step of a sweep on one page of its table.
-- Each step is a function of the owner, core.retention_delete_outbox and the like, which deletes or tombstones at most
-- p_limit rows, no more than the stored policies allow, and skips rows that are locked. p_after is where the page
-- begins, null for the first one.
--
-- Returns how many rows were deleted or tombstoned, and p_after of the next page: null after the last one. No line:
-- another transaction is sweeping.
--
-- A call by a member of spectral_operator is recorded in core.operator_actions, once for each p_run, and once a day
-- without one, and counts as the sweep of core.retention_begin; p_swept_by is a person, or null for the login. Refuses
-- an unknown step or a limit out of range (SP051), policies that contradict each other (SP050), a blank or too long
-- name (SP030), and an isolation level above READ COMMITTED, which would compare keys with an older snapshot (SP053).
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
  -- a restore, or a superuser without the trigger, may have stored others
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
