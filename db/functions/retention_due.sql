-- core.retention_due() counts for each subject the rows that a sweep would tombstone and delete now. It reads a table
-- of up to 100,000 rows whole, and estimates from a sample of as many rows of a larger one. Reads core.outbox,
-- core.event_handled, core.operator_actions, core.retention_policies.
create function core.retention_due() returns table (subject text, to_tombstone bigint, to_delete bigint,
  estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, core, pg_temp as $$
declare
  v_of record;
  v_window record;
  v_percent double precision;
begin
  for v_of in values
    ('outbox_row', 'core.outbox',
      'core.outbox_expired(t.status, t.occurred_at, t.delivered_at, t.claimed_at, t.deleted_at, t.undiscarded_at, '
        '$1, $2)',
      't.deleted_at <= $2 and t.status in (''delivered'', ''failed'')'),
    ('event_handled', 'core.event_handled',
      'core.event_handled_expired(t.event_id, t.idempotency_key, t.handled_at, t.deleted_at, $1)',
      't.deleted_at <= $2 and not core.key_in_outbox(t.event_id, t.idempotency_key)'),
    ('operator_action', 'core.operator_actions', 't.deleted_at is null and t.acted_at <= $1', 't.deleted_at <= $2')
  loop
    subject := v_of.column1;
    v_window := core.retention_window(subject);
    select least(100, 100 * 100000 / greatest(sum(greatest(c.reltuples, pg_stat_get_live_tuples(c.oid))), 1))
      into v_percent
    from pg_class c where c.oid = v_of.column2::regclass
       or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = v_of.column2::regclass);
    execute format('select 100 / $3 * count(*) filter (where %s), 100 / $3 * count(*) filter (where %s) '
      'from %s t tablesample system ($3)', v_of.column3, v_of.column4, v_of.column2)
    into to_tombstone, to_delete using v_window.expired, v_window.grace_over, v_percent;
    estimated := v_percent < 100;
    return next;
  end loop;
end
$$;
