-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_adopt(p_from, p_to, p_limit, p_adopted_by, p_event_types) moves up to p_limit pending events of one generation into another, of
-- the given types or of all: generation and channel change, the processing class stays, and the listeners are woken. Returns how
-- many; call it, in a transaction each, until it returns 0. Left where they are: what a worker has locked or in flight, and what
-- failed, which core.outbox_replay moves.
--
-- What was due is due anew, in the same order, scheduled events keep their time: whoever consumes in p_to does not look for events that are due
-- from before its floor (core.outbox_floor). What was counted stays counted (attempts, handler_failures, crashes): it is the same cycle with other
-- workers, handlers of other names begin with none, and an event that kills its workers gets no further lives.
--
-- Refuses a malformed argument (SP030) and what core.adoption_check does. A live p_from is warned of: its own workers compete. Writes core.outbox, core.operator_actions.
create function core.outbox_adopt(
  p_from bigint, p_to bigint, p_limit integer default 1000, p_adopted_by text default null, p_event_types text[] default null
) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_xid xid8;
  v_now timestamptz;
  v_ids uuid[];
  v_occurred_ats timestamptz[];
  v_channel text;
  v_id uuid;
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    raise exception 'limit: % must be from 1 to 10000', coalesce(p_limit::text, 'null') using errcode = 'SP030', column = 'limit';
  end if;
  if core.adoption_check(p_from, p_to) = 'live' then
    raise warning 'from: generation % is live: its workers compete for its events, and more may come', p_from
      using hint = format('select core.generation_drain(%s);', p_from);
  end if;

  v_xid := pg_current_xact_id(); -- before the time is read: core.outbox_floor
  v_now := clock_timestamp();
  if p_event_types is null then
    select array_agg(b.id order by b.available_at, b.id), array_agg(b.occurred_at order by b.available_at, b.id) into v_ids, v_occurred_ats
    from (select o.id, o.occurred_at, o.available_at from core.outbox o
          where o.generation = p_from and o.status = 'pending' and o.deleted_at is null
          limit p_limit for update skip locked) as b;
  else
    select array_agg(b.id order by b.available_at, b.id), array_agg(b.occurred_at order by b.available_at, b.id) into v_ids, v_occurred_ats
    from (select o.id, o.occurred_at, o.available_at from core.outbox o
          where o.generation = p_from and o.event_type = any (p_event_types) and o.status = 'pending' and o.deleted_at is null
          limit p_limit for update skip locked) as b;
  end if;
  if v_ids is null then
    return 0;
  end if;
  for v_channel, v_id in
    with moved as (
      update core.outbox o
      set generation = p_to,
          channel = 'outbox_gen_' || p_to || coalesce(substring(o.channel from '^outbox_gen_[0-9]+(_.+)$'), ''),
          available_at = greatest(o.available_at, v_now + b.n * interval '1 microsecond')
      from unnest(v_ids, v_occurred_ats) with ordinality as b(id, occurred_at, n)
      where o.id = b.id and o.occurred_at = b.occurred_at
      returning o.channel, o.id)
    select distinct on (m.channel) m.channel, m.id from moved m order by m.channel
  loop
    perform pg_notify(v_channel, v_id::text);
  end loop;
  perform core.operator_action('adopt', p_adopted_by, v_ids, p_to,
    jsonb_build_object('from', p_from, 'event_types', to_jsonb(p_event_types)));
  return cardinality(v_ids);
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_adopt(bigint, bigint, integer, text, text[]) to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.outbox_adopt(bigint, bigint, integer, text, text[]);
