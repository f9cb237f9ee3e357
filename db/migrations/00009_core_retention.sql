-- Retention: policies, and the sweep that follows them.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- How long rows are kept (seed D13). internal/core/retention has the same in Go, and a test compares them.
create table core.retention_policies (
  subject text not null,
  content_class text not null default '*',
  active_ttl_days integer not null,
  tombstoned_grace_days integer not null,
  disposal text not null default 'HARD_DELETE',
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
comment on column core.retention_policies.tombstoned_grace_days is 'days of 24 hours from the tombstone until the row is deleted';
grant select on core.retention_policies to spectral_operator, spectral_retention;

insert into core.retention_policies (subject, active_ttl_days, tombstoned_grace_days) values
  ('outbox_row', 45, 7),
  ('event_handled', 60, 7),
  ('operator_action', 365, 7);

-- What sweeps have done, and where the next goes on.
create table core.retention_runs (
  run_id uuid not null,
  swept_by text not null,
  login text not null default session_user,
  by_hand boolean not null,
  started_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz null,
  steps jsonb not null default '{}',
  constraint retention_runs_pk primary key (run_id),
  constraint retention_runs_swept_by_size check (octet_length(swept_by) between 1 and 256),
  constraint retention_runs_steps_object check (jsonb_typeof(steps) = 'object')
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.retention_runs is 'Sweeps of the last 90 days, each of many transactions.';
comment on column core.retention_runs.updated_at is 'when the latest of its transactions swept';
comment on column core.retention_runs.ended_at is 'when nothing was left; null also for a run that was cut short';
comment on column core.retention_runs.steps is 'rows by step, like {"outbox_row.deleted": 12}';

create index retention_runs_started_at on core.retention_runs (started_at);
grant select on core.retention_runs to spectral_operator, spectral_retention;

create table core.retention_progress (
  subject text not null,
  after_id uuid null,
  after_occurred_at timestamptz null,
  next_block bigint null,
  from_deleted_at timestamptz not null default '-infinity',
  from_deleted_since timestamptz not null default '-infinity',
  walk_started_at timestamptz not null default '-infinity',
  walk_ended_at timestamptz null default '-infinity',
  constraint retention_progress_pk primary key (subject)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.retention_progress is 'Where the walk through each table is that looks for rows to tombstone, and the one through the tombstones.';
comment on column core.retention_progress.after_id is 'the walk goes on behind this key, null: from the first';
comment on column core.retention_progress.next_block is 'the walk goes on with this block of the table, null: the first';
comment on column core.retention_progress.from_deleted_at is 'earlier tombstones are dealt with: what an old snapshot keeps of them is not walked past again';
comment on column core.retention_progress.from_deleted_since is 'when that began, which it does anew in each run: what was locked is then found';
comment on column core.retention_progress.walk_ended_at is 'null while the walk is under way';
grant select on core.retention_progress to spectral_operator;

-- +goose StatementBegin
-- db/functions/retention_policies_check.sql
create function core.retention_policies_check() returns text
language sql volatile
as $$
  select case
    when count(*) filter (where p.subject in ('outbox_row', 'event_handled')) < 2 then 'outbox_row and event_handled must both have a policy'
    when max(p.active_ttl_days) filter (where p.subject = 'event_handled')
      <= max(p.active_ttl_days + p.tombstoned_grace_days) filter (where p.subject = 'outbox_row') then
      format('event_handled is kept for %s days, which must be more than the %s + %s days of outbox_row: an event handled again would take effect again',
        max(p.active_ttl_days) filter (where p.subject = 'event_handled'), max(p.active_ttl_days) filter (where p.subject = 'outbox_row'),
        max(p.tombstoned_grace_days) filter (where p.subject = 'outbox_row'))
  end
  from core.retention_policies p where p.content_class = '*'
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/retention_policies_turn.sql
create function core.retention_policies_turn() returns trigger
language plpgsql
set search_path = pg_catalog, core, pg_temp
as $$
begin
  if tg_op = 'TRUNCATE' then
    raise exception 'core.retention_policies: outbox_row and event_handled must both have a policy' using errcode = 'SP050';
  end if;
  perform core.turn('retention_policies');
  return null;
end
$$;
create trigger retention_policies_turn before insert or update or delete or truncate on core.retention_policies
  for each statement execute function core.retention_policies_turn();
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/retention_policies_keep.sql
create function core.retention_policies_keep() returns trigger
language plpgsql
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_fault text;
begin
  -- with locks: a transaction with an older snapshot is told so, instead of judging by it
  perform from core.retention_policies p order by p.subject, p.content_class for update;
  v_fault := core.retention_policies_check();
  if v_fault is not null then
    raise exception 'core.retention_policies: %', v_fault
      using errcode = 'SP050', column = 'active_ttl_days', hint = 'change the policies that depend on each other in one transaction';
  end if;
  return null;
end
$$;
create constraint trigger retention_policies_keep after insert or update or delete on core.retention_policies
  deferrable initially deferred for each row execute function core.retention_policies_keep();
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_retained_from.sql
create function core.outbox_retained_from(
  p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz, p_failed_at timestamptz
) returns timestamptz
language sql immutable
as $$
  select case p_status when 'delivered' then greatest(p_occurred_at, p_delivered_at)
                       when 'failed' then greatest(p_occurred_at, p_failed_at) end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/key_in_outbox.sql
create function core.key_in_outbox(p_event_id uuid, p_idempotency_key text) returns boolean
language sql stable
as $$
  select exists (select from core.outbox o where o.id = p_event_id)
      or exists (select from core.outbox o
                 where o.idempotency_key = p_idempotency_key and o.status <> 'delivered' and o.idempotency_key <> o.id::text)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/outbox_expired.sql
create function core.outbox_expired(
  p_status text, p_occurred_at timestamptz, p_delivered_at timestamptz, p_failed_at timestamptz, p_deleted_at timestamptz,
  p_undiscarded_at timestamptz, p_expired timestamptz, p_undiscarded_since timestamptz
) returns boolean
language sql immutable
as $$
  select case when p_deleted_at is null and core.outbox_retained_from(p_status, p_occurred_at, p_delivered_at, p_failed_at) <= p_expired
              then case when p_status = 'failed' then coalesce(p_undiscarded_at <= p_undiscarded_since, true) else true end
              else false end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/event_handled_expired.sql
create function core.event_handled_expired(
  p_event_id uuid, p_idempotency_key text, p_handled_at timestamptz, p_deleted_at timestamptz, p_expired timestamptz
) returns boolean
language sql stable
as $$
  select case when p_deleted_at is null and p_handled_at <= p_expired then not core.key_in_outbox(p_event_id, p_idempotency_key) else false end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/retention_sweep.sql
create function core.retention_sweep(
  p_max_rows integer default 1000, p_max_seconds double precision default 1, p_run uuid default null, p_swept_by text default null,
  p_walk_every double precision default 0
) returns table (subject text, step text, rows bigint, looked_at bigint, more boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
set lock_timeout = '1s' set plan_cache_mode = force_generic_plan -- a row is written in less time than it is planned
as $$
#variable_conflict use_column
declare
  c_page constant integer := 2000;  -- entries of the primary key that are read at once
  c_part constant integer := 100;   -- of them, whose rows are looked at between two looks at the clock
  c_blocks constant integer := 16;  -- blocks of core.event_handled
  c_chunk constant integer := 1000; -- rows that are deleted at once
  v_role constant text := current_setting('role');
  v_invoker constant name := case v_role when 'none' then session_user else v_role::name end;
  v_by_hand constant boolean := pg_has_role(v_invoker, 'spectral_operator', 'usage');
  v_run constant uuid := coalesce(p_run, core.uuid_v7());
  v_now constant timestamptz := clock_timestamp();
  v_until timestamptz;
  v_left integer := p_max_rows;
  v_fault text;
  v_run_started timestamptz;
  v_policy core.retention_policies;
  v_at core.retention_progress;
  v_expired timestamptz; -- what is older is tombstoned
  v_over timestamptz;    -- tombstones that are older are deleted
  v_limit integer;
  v_page record;
  v_due integer[];  -- places in the page, and those of a part
  v_part integer[];
  v_seen integer;
  v_ids uuid[];
  v_times timestamptz[];
  v_rows tid[]; -- of core.event_handled
  v_back tid[];
  v_locked integer;
  v_n integer;
  v_from tid;
  v_to tid;
  v_undone bigint;
  v_any_more boolean := false;
  v_steps jsonb := '{}';
begin
  if p_max_rows is null or p_max_rows not between 1 and 10000 then
    raise exception 'max_rows: % must be from 1 to 10000', coalesce(p_max_rows::text, 'null')
      using errcode = 'SP051', column = 'max_rows', hint = 'a sweep is many short transactions: call again while more is left';
  end if;
  if p_max_seconds is null or not (p_max_seconds > 0 and p_max_seconds <= 10) then
    raise exception 'max_seconds: % must be above 0 and at most 10', coalesce(p_max_seconds::text, 'null')
      using errcode = 'SP051', column = 'max_seconds', hint = 'a sweep is many short transactions: call again while more is left';
  end if;
  if p_walk_every is null or not (p_walk_every >= 0 and p_walk_every <= 86400) then
    raise exception 'walk_every: % must be from 0 to 86400 seconds', coalesce(p_walk_every::text, 'null')
      using errcode = 'SP051', column = 'walk_every', hint = 'pass 0 to walk through all there is';
  end if;
  if p_swept_by is not null and (btrim(p_swept_by) = '' or octet_length(p_swept_by) > 256) then
    raise exception 'swept_by: must be 1 to 256 bytes, not blank; it has % bytes', octet_length(p_swept_by)
      using errcode = 'SP030', column = 'swept_by', hint = 'name yourself, or pass null to be noted as your login';
  end if;
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a sweep is not run at isolation level %', current_setting('transaction_isolation')
      using errcode = 'SP053', hint = 'begin isolation level read committed;';
  end if;
  if not core.lead('sweep') then
    return;
  end if;
  -- whoever writes policies past their triggers gets no sweep by them
  v_fault := core.retention_policies_check();
  if v_fault is not null then
    raise exception 'core.retention_policies: %', v_fault
      using errcode = 'SP050', column = 'active_ttl_days', hint = 'mend the policies; nothing is swept until then';
  end if;

  insert into core.retention_runs as r (run_id, swept_by, by_hand)
  values (v_run, coalesce(btrim(p_swept_by), session_user), v_by_hand)
  on conflict (run_id) do nothing;
  if found then
    delete from core.retention_runs r where r.started_at < v_now - interval '90 days';
    if v_by_hand then
      perform core.operator_action('sweep', p_swept_by, '{}', null, jsonb_build_object('run_id', v_run));
    end if;
  elsif not exists (select from core.retention_runs r where r.run_id = v_run and r.login = session_user and r.by_hand = v_by_hand) then
    raise exception 'run: % is somebody else''s', v_run using errcode = 'SP052', column = 'run', hint = 'pass null for a run of your own';
  end if;
  select r.started_at into v_run_started from core.retention_runs r where r.run_id = v_run;

  for v_policy in select p.* from core.retention_policies p where p.content_class = '*'
      order by array_position(array['outbox_row', 'event_handled', 'operator_action'], p.subject) loop
    subject := v_policy.subject;
    v_expired := v_now - make_interval(hours => v_policy.active_ttl_days * 24);
    v_over := v_now - make_interval(hours => v_policy.tombstoned_grace_days * 24);
    insert into core.retention_progress as p (subject) values (v_policy.subject) on conflict do nothing;
    select p.* into v_at from core.retention_progress p where p.subject = v_policy.subject;
    -- each subject has its part of the time
    v_until := clock_timestamp() + make_interval(secs => p_max_seconds / 3);
    if v_at.from_deleted_since < v_run_started or v_at.from_deleted_since > clock_timestamp() then
      v_at.from_deleted_at := '-infinity';
      v_at.from_deleted_since := clock_timestamp();
    end if;

    -- what was tombstoned long enough ago, from where the last call ended. What is locked is written by its key, row by row where that
    -- has two columns: a join may be planned to begin at the table, or to go through all keys for each row. A CASE hides the condition
    -- of a partial index, which a plan might read from end to end instead. Only core.event_handled is written by
    -- ctid, which the lock makes as good as a key; it is walked through by ctid as well, so it is never to be partitioned
    rows := 0;
    looked_at := 0;
    v_undone := 0;
    more := true;
    while more and v_left > 0 and clock_timestamp() < v_until loop
      v_limit := least(c_chunk, v_left);
      if subject = 'outbox_row' then
        select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.occurred_at), '{}'), coalesce(max(l.deleted_at), v_at.from_deleted_at)
        into v_ids, v_times, v_at.from_deleted_at
        from (select o.id, o.occurred_at, o.deleted_at from core.outbox o
              where o.deleted_at between v_at.from_deleted_at and v_over and o.status in ('delivered', 'failed')
              order by o.deleted_at limit v_limit for update skip locked) l;
        v_locked := cardinality(v_ids);
        for v_i in 1 .. v_locked loop
          delete from core.outbox o
          where o.id = v_ids[v_i] and o.occurred_at = v_times[v_i]
            and case when o.deleted_at <= v_over then o.status in ('delivered', 'failed') else false end;
          rows := rows + found::integer;
        end loop;
      elsif subject = 'event_handled' then
        select array_agg(l.ctid) filter (where not l.back), array_agg(l.ctid) filter (where l.back),
               coalesce(max(l.deleted_at), v_at.from_deleted_at)
        into v_rows, v_back, v_at.from_deleted_at
        from (select h.ctid, h.deleted_at, core.key_in_outbox(h.event_id, h.idempotency_key) as back from core.event_handled h
              where h.deleted_at between v_at.from_deleted_at and v_over
              order by h.deleted_at limit v_limit for update skip locked) l;
        delete from core.event_handled h where h.ctid = any (v_rows) and case when h.deleted_at <= v_over then true else false end;
        get diagnostics v_n = row_count;
        rows := rows + v_n;
        update core.event_handled h set deleted_at = null where h.ctid = any (v_back);
        get diagnostics v_n = row_count;
        v_undone := v_undone + v_n;
        v_locked := coalesce(cardinality(v_rows), 0) + coalesce(cardinality(v_back), 0);
      else
        select coalesce(array_agg(l.id), '{}') into v_ids
        from (select a.id from core.operator_actions a
              where a.deleted_at <= v_over order by a.id limit v_limit for update skip locked) l;
        v_locked := cardinality(v_ids);
        delete from core.operator_actions a where a.id = any (v_ids) and a.deleted_at <= v_over;
        get diagnostics v_n = row_count;
        rows := rows + v_n;
      end if;
      looked_at := looked_at + v_locked;
      v_left := v_left - v_locked;
      more := v_locked = v_limit;
    end loop;
    step := 'deleted';
    v_steps := v_steps || jsonb_build_object(subject || '.' || step, rows);
    v_any_more := v_any_more or more;
    return next;
    if subject = 'event_handled' then
      step := 'undone';
      rows := v_undone;
      looked_at := 0;
      more := false;
      v_steps := v_steps || jsonb_build_object(subject || '.' || step, rows);
      return next;
    end if;

    -- what is to be tombstoned: a walk that is under way goes on, and of one that is over the next begins when it is time
    rows := 0;
    looked_at := 0;
    if v_at.walk_ended_at is not null and v_at.walk_started_at < v_run_started
       and v_at.walk_started_at <= v_now - make_interval(secs => p_walk_every)
       or v_at.walk_started_at > clock_timestamp() then -- the clock was set back
      v_at.after_id := null;
      v_at.after_occurred_at := null;
      v_at.next_block := null;
      v_at.walk_started_at := clock_timestamp();
      v_at.walk_ended_at := null;
    end if;
    more := v_at.walk_ended_at is null;
    while more and v_left > 0 and clock_timestamp() < v_until loop
      if subject = 'outbox_row' then
        -- in the index alone; occurred_at is the least that the time counts from
        select count(*)::integer as entries,
               array_agg(k.id) as ids, array_agg(k.occurred_at) as times,
               array_agg(k.n::integer) filter (where k.occurred_at <= v_expired) as due
        into v_page
        from (select o.id, o.occurred_at, row_number() over (order by o.id, o.occurred_at) as n from core.outbox o
              where (o.id, o.occurred_at) > (coalesce(v_at.after_id, '00000000-0000-0000-0000-000000000000'),
                                             coalesce(v_at.after_occurred_at, '-infinity'))
              order by o.id, o.occurred_at limit c_page) k;
        v_due := coalesce(v_page.due, '{}');
        v_seen := 0;
        v_n := 0;
        -- a part is no longer than what may be swept yet: whatever of it is, all of it has been looked at
        while v_seen < cardinality(v_due) loop
          v_part := v_due[v_seen + 1 : v_seen + least(c_part, v_left)];
          v_seen := v_seen + cardinality(v_part);
          v_n := v_part[cardinality(v_part)];
          select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.occurred_at), '{}') into v_ids, v_times
          from (select o.id, o.occurred_at from core.outbox o
                where o.id = any (array(select v_page.ids[n] from unnest(v_part) as n)) and o.occurred_at <= v_expired
                  and (o.id, o.occurred_at) >= (v_page.ids[v_part[1]], v_page.times[v_part[1]])
                  and (o.id, o.occurred_at) <= (v_page.ids[v_n], v_page.times[v_n])
                  and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at, v_expired, v_over)
                limit v_left for update of o skip locked) l;
          for v_i in 1 .. cardinality(v_ids) loop
            update core.outbox o set deleted_at = clock_timestamp()
            where o.id = v_ids[v_i] and o.occurred_at = v_times[v_i]
              and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at, v_expired, v_over);
            rows := rows + found::integer;
            v_left := v_left - found::integer;
          end loop;
          exit when v_left = 0 or clock_timestamp() >= v_until;
        end loop;
        -- the page is done, or as far as what was looked at
        if v_seen = cardinality(v_due) then
          v_n := v_page.entries;
        end if;
        looked_at := looked_at + v_n;
        more := v_n = c_page or v_n < v_page.entries;
        if v_n > 0 then
          v_at.after_id := v_page.ids[v_n];
          v_at.after_occurred_at := v_page.times[v_n];
        end if;
      elsif subject = 'event_handled' then
        v_at.next_block := coalesce(v_at.next_block, 0);
        v_from := format('(%s,0)', v_at.next_block);
        v_to := format('(%s,0)', v_at.next_block + c_blocks);
        select array_agg(l.ctid) into v_rows
        from (select h.ctid from core.event_handled h
              where h.ctid >= v_from and h.ctid < v_to
                and core.event_handled_expired(h.event_id, h.idempotency_key, h.handled_at, h.deleted_at, v_expired)
              limit v_left for update skip locked) l;
        update core.event_handled h set deleted_at = clock_timestamp() where h.ctid = any (v_rows) and h.deleted_at is null;
        get diagnostics v_n = row_count;
        rows := rows + v_n;
        v_left := v_left - v_n;
        if v_left > 0 then
          looked_at := looked_at + c_blocks;
          v_at.next_block := v_at.next_block + c_blocks;
          more := v_at.next_block < pg_relation_size('core.event_handled') / current_setting('block_size')::integer;
        end if;
      else
        v_limit := least(c_chunk, v_left);
        select coalesce(array_agg(l.id), '{}') into v_ids
        from (select a.id from core.operator_actions a
              where a.acted_at <= v_expired and a.deleted_at is null order by a.id limit v_limit for update skip locked) l;
        update core.operator_actions a set deleted_at = clock_timestamp()
        where a.id = any (v_ids) and a.acted_at <= v_expired and a.deleted_at is null;
        get diagnostics v_n = row_count;
        rows := rows + v_n;
        looked_at := looked_at + v_n;
        v_left := v_left - v_n;
        more := v_n = v_limit;
      end if;
    end loop;
    if not more and v_at.walk_ended_at is null then
      v_at.walk_ended_at := clock_timestamp();
      -- one that another run began may have passed by what is due now
      more := p_run is not null and v_at.walk_started_at < v_run_started
        and v_at.walk_started_at <= v_now - make_interval(secs => p_walk_every);
    end if;
    update core.retention_progress p
    set after_id = v_at.after_id, after_occurred_at = v_at.after_occurred_at, next_block = v_at.next_block,
        from_deleted_at = v_at.from_deleted_at, from_deleted_since = v_at.from_deleted_since, walk_started_at = v_at.walk_started_at, walk_ended_at = v_at.walk_ended_at
    where p.subject = v_policy.subject;
    step := 'tombstoned';
    v_steps := v_steps || jsonb_build_object(subject || '.' || step, rows);
    v_any_more := v_any_more or more;
    return next;
  end loop;
  update core.retention_runs r
  set updated_at = clock_timestamp(), ended_at = case when not v_any_more then clock_timestamp() end,
      steps = (select jsonb_object_agg(s.key, coalesce((r.steps ->> s.key)::bigint, 0) + s.value::bigint) from jsonb_each_text(v_steps) s)
  where r.run_id = v_run;
end
$$;
grant execute on function core.retention_sweep(integer, double precision, uuid, text, double precision)
  to spectral_operator, spectral_retention, spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/retention_preview.sql
create function core.retention_preview(p_max_rows bigint default 1000000, p_max_seconds double precision default 10)
returns table (subject text, step text, rows bigint, more boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
#variable_conflict use_column
declare
  c_page constant integer := 2000;
  c_blocks constant integer := 16;
  v_now constant timestamptz := clock_timestamp();
  v_policy core.retention_policies;
  v_expired timestamptz;
  v_over timestamptz;
  v_until timestamptz;
  v_page record;
  v_id uuid;
  v_at timestamptz;
  v_block bigint;
  v_from tid;
  v_to tid;
  v_n bigint;
  v_back bigint;
begin
  if p_max_rows is null or p_max_rows not between 1 and 1000000000 then
    raise exception 'max_rows: % must be from 1 to 1000000000', coalesce(p_max_rows::text, 'null') using errcode = 'SP051', column = 'max_rows';
  end if;
  if p_max_seconds is null or not (p_max_seconds > 0 and p_max_seconds <= 3600) then
    raise exception 'max_seconds: % must be above 0 and at most 3600', coalesce(p_max_seconds::text, 'null')
      using errcode = 'SP051', column = 'max_seconds';
  end if;
  for v_policy in select p.* from core.retention_policies p where p.content_class = '*'
      order by array_position(array['outbox_row', 'event_handled', 'operator_action'], p.subject) loop
    subject := v_policy.subject;
    v_expired := v_now - make_interval(hours => v_policy.active_ttl_days * 24);
    v_over := v_now - make_interval(hours => v_policy.tombstoned_grace_days * 24);
    v_until := clock_timestamp() + make_interval(secs => p_max_seconds / 5);
    v_back := 0;
    rows := 0;
    more := false;
    if subject = 'outbox_row' then
      select count(*) into rows from
        (select from core.outbox o where o.deleted_at <= v_over and o.status in ('delivered', 'failed') limit p_max_rows) l;
    elsif subject = 'event_handled' then
      for v_at, v_n in
        select h.deleted_at, core.key_in_outbox(h.event_id, h.idempotency_key)::integer from core.event_handled h
        where h.deleted_at <= v_over order by h.deleted_at
      loop
        rows := rows + 1 - v_n;
        v_back := v_back + v_n;
        more := rows >= p_max_rows or clock_timestamp() >= v_until;
        exit when more;
      end loop;
    else
      select count(*) into rows from (select from core.operator_actions a where a.deleted_at <= v_over limit p_max_rows) l;
    end if;
    step := 'deleted';
    more := more or rows >= p_max_rows;
    return next;
    if subject = 'event_handled' then
      step := 'undone';
      rows := v_back;
      return next;
    end if;

    v_until := clock_timestamp() + make_interval(secs => p_max_seconds / 5);
    rows := 0;
    more := true;
    v_id := '00000000-0000-0000-0000-000000000000';
    v_at := '-infinity';
    v_block := 0;
    while more and rows < p_max_rows and clock_timestamp() < v_until loop
      if subject = 'outbox_row' then
        select count(*)::integer as entries, array_agg(k.id) as ids, array_agg(k.occurred_at) as times,
               array_agg(k.id) filter (where k.occurred_at <= v_expired) as due
        into v_page
        from (select o.id, o.occurred_at from core.outbox o where (o.id, o.occurred_at) > (v_id, v_at)
              order by o.id, o.occurred_at limit c_page) k;
        if v_page.due is not null then
          select count(*) into v_n from core.outbox o
          where o.id = any (v_page.due) and o.occurred_at <= v_expired
            and (o.id, o.occurred_at) > (v_id, v_at)
            and (o.id, o.occurred_at) <= (v_page.ids[v_page.entries], v_page.times[v_page.entries])
            and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at, v_expired, v_over);
          rows := rows + v_n;
        end if;
        more := v_page.entries = c_page;
        if v_page.entries > 0 then
          v_id := v_page.ids[v_page.entries];
          v_at := v_page.times[v_page.entries];
        end if;
      elsif subject = 'event_handled' then
        v_from := format('(%s,0)', v_block);
        v_to := format('(%s,0)', v_block + c_blocks);
        select count(*) into v_n from core.event_handled h
        where h.ctid >= v_from and h.ctid < v_to
          and core.event_handled_expired(h.event_id, h.idempotency_key, h.handled_at, h.deleted_at, v_expired);
        rows := rows + v_n;
        v_block := v_block + c_blocks;
        more := v_block < pg_relation_size('core.event_handled') / current_setting('block_size')::integer;
      else
        select count(*) into rows from
          (select from core.operator_actions a where a.acted_at <= v_expired and a.deleted_at is null limit p_max_rows) l;
        more := rows >= p_max_rows;
      end if;
    end loop;
    rows := least(rows, p_max_rows);
    more := more or rows = p_max_rows;
    step := 'tombstoned';
    return next;
  end loop;
end
$$;
grant execute on function core.retention_preview(bigint, double precision)
  to spectral_operator, spectral_retention, spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/retention_status.sql
create function core.retention_status(p_warn_days integer default 7)
returns table (
  policy_fault text, failed_expiring bigint, failed_expire_first_at timestamptz,
  run_id uuid, run_by text, run_by_hand boolean, run_started_at timestamptz, run_updated_at timestamptz, run_ended_at timestamptz, run_steps jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
  if p_warn_days is null or p_warn_days not between 0 and 36500 then
    raise exception 'warn_days: % must be from 0 to 36500', coalesce(p_warn_days::text, 'null') using errcode = 'SP051', column = 'warn_days';
  end if;
  return query
  select core.retention_policies_check(), f.events, f.first_at,
         r.run_id, r.swept_by, r.by_hand, r.started_at, r.updated_at, r.ended_at, r.steps
  from
    (select count(*) as events,
            min(greatest(core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at) + t.ttl,
                         o.undiscarded_at + t.grace)) as first_at
     from (select make_interval(hours => p.active_ttl_days * 24) as ttl, make_interval(hours => p.tombstoned_grace_days * 24) as grace,
                  clock_timestamp() + make_interval(hours => p_warn_days * 24) as until
           from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*') t,
          core.outbox o
     where o.status = 'failed' and o.deleted_at is null
       and (o.claimed_at <= t.until - t.ttl or o.claimed_at is null)
       and core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
             t.until - t.ttl, t.until - t.grace)) f
  left join (select * from core.retention_runs r order by r.started_at desc limit 1) r on true;
end
$$;
grant execute on function core.retention_status(integer) to spectral_operator, spectral_retention, spectral_worker;
-- +goose StatementEnd

-- +goose StatementBegin
-- db/functions/retention_due_in.sql
create function core.retention_due_in(p_interval double precision) returns double precision
language plpgsql stable security definer
set search_path = pg_catalog, core, pg_temp
as $$
begin
  if p_interval is null or not (p_interval > 0 and p_interval <= 86400) then
    raise exception 'interval: % must be above 0 and at most 86400 seconds', coalesce(p_interval::text, 'null') using errcode = 'SP051', column = 'interval';
  end if;
  return coalesce(
    (select greatest(0, least(p_interval, extract(epoch from
       case when r.ended_at is null then r.updated_at + interval '1 minute' else r.started_at + make_interval(secs => p_interval) end
       - clock_timestamp())))
     from core.retention_runs r where not r.by_hand order by r.started_at desc limit 1), 0)::double precision;
end
$$;
grant execute on function core.retention_due_in(double precision)
  to spectral_operator, spectral_retention, spectral_worker;
-- +goose StatementEnd

reset role;

-- +goose Down
set local lock_timeout = '500ms';
-- +goose StatementBegin
do $$
begin
  lock table core.retention_policies in access exclusive mode;
  if exists (select subject, content_class, active_ttl_days, tombstoned_grace_days from core.retention_policies
             except values ('outbox_row', '*', 45, 7), ('event_handled', '*', 60, 7), ('operator_action', '*', 365, 7)) then
    raise exception 'core.retention_policies has policies that you set: going down would lose them';
  end if;
end
$$;
-- +goose StatementEnd
drop trigger retention_policies_turn on core.retention_policies;
drop trigger retention_policies_keep on core.retention_policies;
drop function core.retention_policies_check, core.retention_policies_turn, core.retention_policies_keep,
  core.outbox_retained_from, core.key_in_outbox, core.outbox_expired, core.event_handled_expired,
  core.retention_sweep, core.retention_preview, core.retention_status, core.retention_due_in;
drop table core.retention_progress, core.retention_runs, core.retention_policies;
