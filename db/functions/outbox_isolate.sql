-- core.outbox_isolate(...) finds out which due rows make a step fail, and gives them up (core.outbox_give_up): all of
-- them, until it has found p_limit usable rows or a second has passed since the first. It reads each row as a 'claim'
-- does. For a 'lease' it also writes it as that does; to 'settle', it finds those rows that can be marked neither as
-- delivered nor as failed. What it writes of usable rows is undone. It returns a line for each row that it gave up.
-- p_again says that the step has failed often: then errors that usually pass are the row's too, if they come four times
-- in a row, and it is quarantined. Writes core.outbox, core.quarantined_events.
create function core.outbox_isolate(p_generation bigint, p_event_type text, p_limit integer, p_watermark timestamptz,
  p_crashed boolean, p_step text, p_again boolean) returns table (event_id uuid, outcome text, reason text,
  source text, target text, attempts integer)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  v_start constant timestamptz := clock_timestamp();
  v_row record;
  v_token uuid;
  v_usable boolean;
  v_fault boolean;
  v_left integer := p_limit;
begin
  for v_row in
    select o.id, o.occurred_at, o.source, o.target, o.attempts from core.outbox o
    where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending' and o.deleted_at is null
      and o.available_at <= statement_timestamp() and (o.crashes > 0) = p_crashed
      and (p_crashed or o.available_at >= p_watermark)
      and not exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)
    order by o.available_at for update of o skip locked loop
    v_usable := false;
    for v_try in 1 .. case when p_again then 4 else 1 end loop
      begin
        perform case when core.payload_bytes(o.payload) + core.payload_bytes(o.handler_failures) > 0
          then octet_length(o.payload::text) + octet_length(o.handler_failures::text)::bigint end
        from core.outbox o where o.id = v_row.id and o.occurred_at = v_row.occurred_at;
        if p_step = 'lease' then
          update core.outbox o
          set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(),
              claimed_by = 'probe', attempts = least(o.attempts, 999999999) + 1
          where o.id = v_row.id and o.occurred_at = v_row.occurred_at returning o.claim_token into v_token;
          if v_token is null then perform core.row_kept(); end if;
        elsif p_step = 'settle' and core.outbox_give_up(v_row.id, v_row.occurred_at, null, '') <> 'failed'
          and core.outbox_deliver(array[v_row.id], array[v_row.occurred_at]) = 0 then
          perform core.row_kept();
        end if;
        set constraints all immediate;
        v_usable := true;
        raise exception 'undo';
      exception when others then
        reason := sqlstate || ': ' || sqlerrm;
        v_fault := core.row_fault(sqlstate);
        v_usable := v_usable or not core.row_fault(sqlstate, p_again);
      end;
      exit when v_usable or v_fault;
    end loop;
    if not v_usable then
      event_id := v_row.id;
      source := v_row.source;
      target := v_row.target;
      attempts := v_row.attempts;
      outcome := core.outbox_give_up(v_row.id, v_row.occurred_at, null, reason, p_again);
      return next;
    end if;
    v_left := v_left - v_usable::integer;
    exit when v_left = 0 or outcome is not null and clock_timestamp() > v_start + interval '1 second';
  end loop;
end
$$;
