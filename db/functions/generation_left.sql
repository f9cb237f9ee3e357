-- core.generation_left(p_generation) says what keeps a generation from being retired, null: nothing does. Failed events
-- do not need its workers. Relayed ones are in flight. Reads core.outbox, core.quarantined_events.
create function core.generation_left(p_generation bigint) returns text
language sql volatile set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select case when w.due + w.scheduled + f.in_flight > 0 then
           format('%s due, %s scheduled%s, %s in flight%s', w.due, w.scheduled,
             coalesce(' until ' || to_char(w.last at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), ''), f.in_flight,
             (select format('; %s of them quarantined', count(*)) from core.quarantined_events q
              where q.generation = p_generation having count(*) > 0)) end
  from (select count(*) filter (where o.available_at <= statement_timestamp()) as due,
               count(*) filter (where o.available_at > statement_timestamp()) as scheduled,
               max(o.available_at) filter (where o.available_at > statement_timestamp()
                 and o.waiting_for is null) as last
        from core.outbox o where o.generation = p_generation and o.status = 'pending' and o.deleted_at is null) as w,
       (select count(*) as in_flight from
          (select from core.outbox o
           where o.generation = p_generation and o.status = 'in_flight' and o.deleted_at is null
           union all
           select from core.outbox o
           where o.generation = p_generation and o.status = 'relayed' and o.deleted_at is null) h) as f
$$;
