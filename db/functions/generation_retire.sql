-- core.generation_retire(p_generation, p_retired_by) takes a draining generation one step towards its end, and says
-- where it stands. Call it, in a transaction each, until it returns 'retired'; a call is never harmful. Beginning
-- otherwise with:
--
--   not empty   events are left: nothing has changed, or, if they came while it was being closed, it takes events
--               again, because their handlers may publish more into it
--   closing     from now on publishing into it is refused
--   waiting     for transactions that may have published into it before
--   retired
--
-- Why nothing is stranded. A publisher takes its transaction id before it reads the generation
-- (core.outbox_publish_event). So every publisher that saw it open has an id from before the closing was visible. The
-- first call that sees the closing takes a new id as the upper bound, and the generation is retired once no transaction
-- with a lower id runs. A transaction that already has an id cannot set the bound, because its id may be lower than a
-- publisher's. pg_snapshot_xmax is no such bound: it is one above the highest id that has ended, and running ones may
-- lie above it (docs/decisions/0007). The price is that unrelated transactions are waited for, those of other databases
-- included. Publishers with an older snapshot, and functions that move events, lock the generation's row, which is
-- waited for.
--
-- Refuses a generation that is unknown (SP019) or live (SP040), and to be called at a higher isolation level than READ
-- COMMITTED, which would look at events of an older snapshot (SP043). Ends the pauses of what it retires, and notes
-- them, and deletes its breakers. Writes core.deployments, core.event_types, core.paused_types, core.breakers,
-- core.operator_actions; reads core.outbox.
create function core.generation_retire(p_generation bigint, p_retired_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set lock_timeout = '1s' as $$
declare
  v_old_id constant boolean := pg_current_xact_id_if_assigned() is not null; -- locking the row assigns one
  v_deployment core.deployments;
  v_left text;
  v_over boolean;
  v_bound xid8;
  v_paused text[];
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a generation cannot be retired at isolation level %', current_setting('transaction_isolation')
      using errcode = 'SP043', hint = 'begin isolation level read committed;';
  end if;
  begin
    select * into v_deployment from core.deployments d where d.generation = p_generation for update;
  exception when lock_not_available then
    return 'waiting: for a transaction that replays or adopts into the generation, '
      'publishes into it at REPEATABLE READ or SERIALIZABLE, or changes it';
  end;
  if v_deployment.generation is null then
    raise exception 'generation: % is not registered', coalesce(p_generation::text, 'null')
      using errcode = 'SP019', column = 'generation', hint = '`workers generation status` lists them';
  elsif v_deployment.status = 'retired' then
    return 'retired';
  elsif v_deployment.status <> 'draining' then
    raise exception 'generation: % is %', p_generation, v_deployment.status
      using errcode = 'SP040', column = 'generation',
            hint = case when exists (select from core.deployments d where d.status = 'live'
                and d.generation <> p_generation) then '' else 'start the workers of the next generation; then ' end
              || format('drain it first: `workers generation drain %1$s`, or: select core.generation_drain(%1$s)',
                p_generation);
  end if;

  if v_deployment.closed_at is null then
    v_left := core.generation_left(p_generation);
    if v_left is not null then return 'not empty: ' || v_left; end if;
    update core.deployments d set closed_at = clock_timestamp(), closed_xid = pg_current_xact_id(), closed_bound = null
    where d.generation = p_generation;
    perform core.operator_action('generation_close', p_retired_by, p_generation => p_generation);
    return 'closing: publishing into it is refused from now on; call again';
  elsif v_deployment.closed_xid = pg_current_xact_id() then
    return 'closing: commit, and call again';
  end if;

  -- a bound above the current id comes from another server, whose dump this is
  v_bound := v_deployment.closed_bound;
  if v_bound is null or v_bound > pg_current_xact_id() then
    if v_old_id then return 'waiting: commit, and call again'; end if;
    v_bound := pg_current_xact_id();
    update core.deployments d set closed_bound = v_bound where d.generation = p_generation;
  end if;
  v_over := pg_snapshot_xmin(pg_current_snapshot()) >= v_bound;
  -- in a snapshot taken after that one; and at once, because a handler of what has come may publish more
  v_left := core.generation_left(p_generation);
  if v_left is not null then
    update core.deployments d set closed_at = null, closed_xid = null, closed_bound = null
      where d.generation = p_generation;
    perform core.operator_action('generation_reopen', p_retired_by, p_generation => p_generation,
      p_details => jsonb_build_object('left', v_left));
    return 'not empty: ' || v_left || ', which came while it was being closed: it takes events again';
  elsif not v_over then
    return format('waiting: for %s that may have published into it before it was closed %s s ago; unrelated ones '
      'look the same',
      coalesce(core.transactions_below(v_bound), 'transactions'),
        extract(epoch from clock_timestamp() - v_deployment.closed_at)::integer);
  end if;
  begin
    perform from core.event_types t where t.consumed_in ? p_generation::text
      order by t.event_type, t.event_version for update;
  exception when lock_not_available then
    return 'waiting: for a worker that registers its event types';
  end;
  update core.deployments d set status = 'retired', retired_at = clock_timestamp() where d.generation = p_generation;
  -- publishing reads this column
  update core.event_types t set consumed_in = t.consumed_in - p_generation::text
    where t.consumed_in ? p_generation::text;
  with ended as (delete from core.paused_types p where p.generation = p_generation returning p.event_type)
  select array_agg(e.event_type order by e.event_type) into v_paused from ended e;
  delete from core.breakers b where b.generation = p_generation;
  perform core.operator_action('generation_retire', p_retired_by, p_generation => p_generation,
    p_details => jsonb_build_object('paused_types', to_jsonb(v_paused)));
  return 'retired';
end
$$;
