-- core.event_type_resume(p_event_type, p_generation, p_resumed_by) ends a pause, and wakes the workers on every channel
-- that they may listen on for the type. Refuses a type that is not paused there (SP034), a blank name (SP030). Writes
-- core.paused_types, core.operator_actions; reads core.event_types, core.outbox.
create function core.event_type_resume(p_event_type text, p_generation bigint,
  p_resumed_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
  v_id text;
begin
  delete from core.paused_types p where p.generation = p_generation and p.event_type = p_event_type;
  if not found then
    raise exception 'event_type: % is not paused in generation %',
      coalesce(quote_literal(left(p_event_type, 200)), 'null'), coalesce(p_generation::text, 'null')
      using errcode = 'SP034', column = 'event_type', hint = '`workers events pause --list` shows what is paused';
  end if;
  perform core.operator_action('resume', p_resumed_by, '{}', p_generation,
    jsonb_build_object('event_type', p_event_type));
  -- also where nothing waits: an event that is published now may have notified while the type was paused
  v_id := (select o.id::text from core.outbox o
           where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending'
             and o.deleted_at is null order by o.available_at limit 1);
  -- on the channel of the contract, and those of some that wait: an older build may know another class
  perform pg_notify(c.channel, coalesce(v_id, '')) from
    (select 'outbox_gen_' || p_generation || coalesce('_' || t.class, '') as channel from core.event_types t
     where t.event_type = p_event_type
     union
     select o.channel from (select o.channel from core.outbox o
       where o.generation = p_generation and o.event_type = p_event_type and o.status = 'pending'
         and o.deleted_at is null order by o.available_at limit 1000) o) c;
end
$$;
