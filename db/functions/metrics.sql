-- core.metrics(p_since) returns what the metrics of workers say about the database (docs/telemetry.md), a line for each
-- value. event_type, generation and status are of a backlog, otherwise null; failed events, which may be of many
-- generations, are not counted by generation. It counts at most 2,000 events in flight, 2,000 relayed ones of a type,
-- the 2,000 latest failed ones but for those in muted groups of errors, and about 20,000 pending ones, to take less
-- than 50 ms of a table of 5 M rows. It fails if a table is locked for a second, to give the connection back. A value
-- that is not known is left out. p_since is from when on replays count. Reads core.outbox, core.quarantined_events,
-- core.breakers, core.error_groups, core.paused_types, core.operator_actions, core.delivery_latency_hours,
-- core.retention_policies.
create function core.metrics(p_since timestamptz)
returns table (metric text, event_type text, generation bigint, status text, value double precision)
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set lock_timeout = '1s' as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := clock_timestamp();
  v_window record;
  v_types constant integer := (select count(*) from core.pending_types());
  v_muted constant text[] := array(select g.group_id from core.error_groups g where g.muted_until > v_now);
  v_most constant integer := greatest(20000 / greatest(2 * v_types, 2), 10);
begin
  return query
    with counted as materialized (
      select t.event_type, t.generation, s.status, s.count, s.oldest
      from core.pending_types() t cross join lateral (
        select case when exists (select from core.paused_types p where p.event_type = t.event_type
          and p.generation = t.generation) then 'paused' else 'due' end as status,
          count(*) as count, min(d.available_at) as oldest from (
          select o.available_at from core.outbox o
          where o.generation = t.generation and o.event_type = t.event_type and o.status = 'pending'
            and o.deleted_at is null and o.available_at <= v_now order by o.available_at limit v_most) d
        union all
        select 'scheduled', count(*), null from (
          select from core.outbox o
          where o.generation = t.generation and o.event_type = t.event_type and o.status = 'pending'
            and o.deleted_at is null and o.available_at > v_now order by o.available_at limit v_most) d) s
      union all
      select f.event_type, f.generation, 'in_flight', count(*), min(f.claimed_at) from (
        select o.event_type, o.generation, o.claimed_at from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null order by o.id limit 2000) f
      group by f.event_type, f.generation
      union all
      select t.event_type, t.generation, 'relayed', f.count, f.oldest from core.relayed_types() t cross join lateral (
        select count(*) as count, min(r.relayed_at) as oldest from (
          select o.relayed_at from core.outbox o where o.generation = t.generation and o.event_type = t.event_type
            and o.status = 'relayed' and o.deleted_at is null order by o.relayed_at limit 2000) r) f
      union all
      select f.event_type, null, 'failed', count(*), min(f.claimed_at) from (
        select o.event_type, o.claimed_at from core.outbox o
        where o.status = 'failed' and o.deleted_at is null
          and (v_muted = '{}' or not core.failures_muted(o.handler_failures, v_muted))
        order by o.claimed_at desc limit 2000) f
      group by f.event_type)
    select 'spectral.backlog', c.event_type, c.generation, c.status, c.count::double precision
    from counted c where c.count > 0
    union all
    select 'spectral.backlog.age', c.event_type, c.generation, c.status,
      extract(epoch from v_now - c.oldest)::double precision
    from counted c where isfinite(c.oldest);
  v_window := core.retention_window('outbox_row');
  return query
    select s.metric, null, null::bigint, null, s.value::double precision from (values
      ('spectral.breakers.open', (select count(*) from core.breakers)),
      ('spectral.events.quarantined', (select count(*) from core.quarantined_events)),
      ('spectral.events.expiring', (select count(*) from (select o.* from core.outbox o
        where o.status = 'failed' and o.deleted_at is null and o.claimed_at <= v_window.expired + interval '7 days'
        order by o.claimed_at limit 10000) o
        where core.outbox_expired(o.status, o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired + interval '7 days', v_window.grace_over + interval '7 days'))),
      ('spectral.leases.overdue', (select count(*) from (select o.claimed_at, o.lease_seconds from core.outbox o
        where o.status = 'in_flight' and o.deleted_at is null order by o.id limit 10000) f
        where f.claimed_at < v_now - make_interval(secs => f.lease_seconds + 60))),
      ('spectral.events.replayed', (select coalesce(sum(cardinality(a.event_ids)), 0) from core.operator_actions a
        where a.action = 'replay' and a.acted_at >= p_since and a.deleted_at is null)),
      -- the oldest by their ids
      ('spectral.rows.overdue', (select count(*) from (select o.* from core.outbox o order by o.id limit 2000) o
        where o.id < core.uuid_v7_floor(v_window.expired - interval '1 day') and core.outbox_expired(o.status,
          o.occurred_at, o.delivered_at, o.claimed_at, o.deleted_at, o.undiscarded_at,
          v_window.expired - interval '1 day', v_window.grace_over - interval '1 day'))),
      ('spectral.outbox.rows', (select sum(greatest(c.reltuples, 0)) from pg_class c
        where c.oid = 'core.outbox'::regclass
          or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = 'core.outbox'::regclass))),
      ('spectral.outbox.partitions', (select count(*) from pg_inherits i where i.inhparent = 'core.outbox'::regclass)),
      ('spectral.latency.p99', (select h.p99_ms / 1000.0 from core.delivery_latency_hours h
        where h.hour >= date_trunc('hour', v_now - interval '1 hour', 'UTC') order by h.hour desc limit 1)),
      ('spectral.notification_queue.usage', pg_notification_queue_usage()),
      ('spectral.snapshot.transactions', (pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        - pg_snapshot_xmin(pg_current_snapshot())::text::bigint))
      ) as s(metric, value)
    where s.value is not null;
end
$$;
