-- core.retention_sweep(...) is one transaction's part of a sweep: it deletes and tombstones up to p_max_rows rows whose time is over by
-- core.retention_policies and the database's clock, within about p_max_seconds. Called until more is false in all lines, it has swept all
-- there is. Whoever calls it, and however, it does no more than the stored policies allow:
--
--   outbox_row       settled rows are tombstoned once their time is over (core.outbox_retained_from), failed ones that were
--                    undiscarded not before the grace has passed once more (core.outbox_expired); tombstones are deleted after the grace
--   event_handled    is tombstoned, and deleted, only when no event comes back any more that it is about (core.event_handled_expired, core.key_in_outbox); a
--                    tombstone whose key has come back is undone. A tombstone forgets nothing: handlers find the key taken until it is deleted
--   operator_action  by acted_at
--
-- Returns a line for each subject and step, in that order: rows that were tombstoned, deleted or undone, rows of the table or its index that
-- were looked at, and whether more is left. No lines at all: somebody else is sweeping. Leading is a lock of this transaction (core.lead): whoever loses
-- the one has lost the other, and who is killed in the middle leaves nothing half done.
--
-- Rows that somebody has locked are left for the next time, and nobody waits for the sweep but who deals with one of its rows in the very moment.
-- Rows to tombstone are found by a walk through the whole table, which goes on from call to call; one that has come to its end begins anew after
-- p_walk_every seconds. Tombstones have an index.
--
-- p_run names the run that this is a part of; null: a run of its own. A member of spectral_operator has it noted in core.operator_actions,
-- once for each run; p_swept_by is who that was, or which worker.
-- Refuses arguments out of range (SP051), a name that is blank or too long (SP030), somebody else's run (SP052), to sweep at all without sound policies (SP050), and to
-- be called at a higher isolation level than READ COMMITTED, which would judge keys by an older snapshot (SP053).
-- Writes core.outbox, core.event_handled, core.operator_actions, core.retention_runs, core.retention_progress.
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
