-- core.retention_preview(p_max_rows, p_max_seconds) counts what core.retention_sweep would do now, by the same rules, and changes
-- nothing. What both judge rows by are core.outbox_expired, core.event_handled_expired and core.key_in_outbox; the times of tombstones and
-- of operators' actions each has for itself, for they are conditions of indexes. Returns a line for each subject and step: rows, and whether there may be more, because so many were counted or the time was up. Deleted
-- ones do not appear among those to tombstone. Refuses arguments out of range (SP051). Reads what the sweep does.
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
