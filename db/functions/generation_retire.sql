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
-- Why nothing is stranded. Of a publisher that saw the generation open we know that it had its transaction id before
-- (core.outbox_insert), and so before the closing was visible. A call that sees the closing takes an id, the mark: all
-- those publishers have lower ones. A transaction that had its id before the call has none to give: it may be below
-- theirs. Once the lowest running id is not below the mark, each of their rows is visible or gone. Not pg_snapshot_xmax
-- for a mark: that is one above the highest id that has ended, and running ones may lie above it (docs/decisions/0007).
-- The price is that unrelated transactions are waited for as well, those of other databases included. Publishers with a
-- snapshot of older date, and functions that move events, lock the row instead, and are waited for by the lock.
--
-- Refuses a generation that is unknown (SP019) or live (SP040), and to be called at a higher isolation level than READ
-- COMMITTED, which would look at events of an older snapshot (SP043). Ends the pauses of what it retires, and notes
-- them. Writes core.deployments, core.paused_types, core.operator_actions; reads core.outbox.
create function core.generation_retire(p_generation bigint, p_retired_by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set lock_timeout = '1s' as $$
declare
  v_old_id constant boolean := pg_current_xact_id_if_assigned() is not null; -- locking the row assigns one
  v_deployment core.deployments;
  v_left text;
  v_over boolean;
  v_mark xid8;
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
      using errcode = 'SP019', column = 'generation', hint = 'select generation, status from core.deployments';
  elsif v_deployment.status = 'retired' then
    return 'retired';
  elsif v_deployment.status <> 'draining' then
    raise exception 'generation: % is %', p_generation, v_deployment.status
      using errcode = 'SP040', column = 'generation',
            hint = format('only a draining one is retired: select core.generation_drain(%s);', p_generation);
  end if;

  if v_deployment.closed_at is null then
    v_left := core.generation_left(p_generation);
    if v_left is not null then return 'not empty: ' || v_left; end if;
    update core.deployments d set closed_at = clock_timestamp(), closed_xid = pg_current_xact_id(), closed_mark = null
    where d.generation = p_generation;
    perform core.operator_action('generation_close', p_retired_by, p_generation => p_generation);
    return 'closing: publishing into it is refused from now on; call again';
  elsif v_deployment.closed_xid = pg_current_xact_id() then
    return 'closing: commit, and call again';
  end if;

  -- a mark that is not below an id of now is of another server, whose dump this is
  v_mark := v_deployment.closed_mark;
  if v_mark is null or v_mark > pg_current_xact_id() then
    if v_old_id then return 'waiting: commit, and call again'; end if;
    v_mark := pg_current_xact_id();
    update core.deployments d set closed_mark = v_mark where d.generation = p_generation;
  end if;
  v_over := pg_snapshot_xmin(pg_current_snapshot()) >= v_mark;
  -- in a snapshot taken after that one; and at once, because a handler of what has come may publish more
  v_left := core.generation_left(p_generation);
  if v_left is not null then
    update core.deployments d set closed_at = null, closed_xid = null, closed_mark = null
      where d.generation = p_generation;
    perform core.operator_action('generation_reopen', p_retired_by, p_generation => p_generation,
      p_details => jsonb_build_object('left', v_left));
    return 'not empty: ' || v_left || ', which came while it was being closed: it takes events again';
  elsif not v_over then
    return format('waiting: for %s that may have published into it before it was closed %s s ago; unrelated ones '
      'cannot be told apart',
      coalesce(core.transactions_below(v_mark), 'transactions'),
        extract(epoch from clock_timestamp() - v_deployment.closed_at)::integer);
  end if;
  update core.deployments d set status = 'retired', retired_at = clock_timestamp() where d.generation = p_generation;
  with ended as (delete from core.paused_types p where p.generation = p_generation returning p.event_type)
  select array_agg(e.event_type order by e.event_type) into v_paused from ended e;
  perform core.operator_action('generation_retire', p_retired_by, p_generation => p_generation,
    p_details => jsonb_build_object('paused_types', to_jsonb(v_paused)));
  return 'retired';
end
$$;
