-- core.outbox_isolate(...) finds out which rows make a claim of up to p_limit rows fail, and gives them up
-- (core.outbox_give_up). It reads each row that the claim would take, or, with p_leased, also writes it as the claim
-- would, which is undone. It returns a line for each row that it gave up. Reading such a row can take seconds: it ends
-- early, for the caller to commit and claim again. p_again says that the claim has failed often: then errors that
-- usually pass are the row's too, and it is quarantined. Writes core.outbox, core.quarantined_events.
create function core.outbox_isolate(p_generation bigint, p_event_type text, p_limit integer, p_watermark timestamptz,
  p_crashed boolean, p_leased boolean, p_again boolean) returns table (event_id uuid, outcome text, reason text)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  v_start constant timestamptz := clock_timestamp();
  v_skipped constant uuid[] := core.quarantined(p_generation, p_event_type);
  v_row record;
  v_token uuid;
  v_usable boolean;
begin
  for v_row in
    select o.id, o.occurred_at from core.outbox o
    where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending' and o.deleted_at is null
      and o.available_at <= statement_timestamp() and (o.crashes > 0) = p_crashed
      and (p_crashed or o.available_at >= p_watermark) and o.id <> all (v_skipped)
    order by o.available_at limit p_limit for update skip locked loop
    v_usable := false;
    begin
      perform case when core.payload_bytes(o.payload) + core.payload_bytes(o.handler_failures) > 0
        then octet_length(o.payload::text) + octet_length(o.handler_failures::text)::bigint end
      from core.outbox o where o.id = v_row.id and o.occurred_at = v_row.occurred_at;
      if p_leased then
        update core.outbox o set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(),
            claimed_by = 'probe', attempts = least(o.attempts, 999999999) + 1
        where o.id = v_row.id and o.occurred_at = v_row.occurred_at returning o.claim_token into v_token;
        if v_token is null then perform core.row_kept(); end if;
        set constraints all immediate;
        v_usable := true;
        raise exception 'undo';
      end if;
      v_usable := true;
    exception when others then
      if not v_usable and core.row_fault(sqlstate, p_again) then
        event_id := v_row.id;
        reason := sqlstate || ': ' || sqlerrm;
        outcome := core.outbox_give_up(v_row.id, v_row.occurred_at, null, reason, p_again);
        return next;
      end if;
    end;
    exit when outcome is not null and clock_timestamp() > v_start + interval '1 second';
  end loop;
end
$$;
