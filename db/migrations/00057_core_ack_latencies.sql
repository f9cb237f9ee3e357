-- How long events wait for their handlers, by the hour: one of the figures that say when to move on (seed D15).

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.ack_latencies (
  hour timestamptz not null,
  up_to_ms integer not null,
  events bigint not null,
  measured_at timestamptz not null,
  constraint ack_latencies_pk primary key (hour, up_to_ms),
  constraint ack_latencies_events_positive check (events > 0)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.ack_latencies is 'Histogram of samples of the time from when events were due to when they were settled, kept for 8 days.';
comment on column core.ack_latencies.up_to_ms is 'events of this bucket took at most so many milliseconds, and more than the bucket below';
grant select on core.ack_latencies to spectral_operator;

create view core.ack_latency_hours as
  select l.hour, sum(l.events)::bigint as events,
    (select min(u.up_to_ms) from core.ack_latencies u
     where u.hour = l.hour and (select sum(b.events) from core.ack_latencies b where b.hour = l.hour and b.up_to_ms <= u.up_to_ms) * 2 >= sum(l.events)) as p50_ms,
    (select min(u.up_to_ms) from core.ack_latencies u
     where u.hour = l.hour and (select sum(b.events) from core.ack_latencies b where b.hour = l.hour and b.up_to_ms <= u.up_to_ms) * 100 >= sum(l.events) * 99) as p99_ms
  from core.ack_latencies l group by l.hour;
comment on view core.ack_latency_hours is 'Percentiles of core.ack_latencies: the upper bound of the bucket that each lies in.';
grant select on core.ack_latency_hours to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop view core.ack_latency_hours;
drop table core.ack_latencies;
