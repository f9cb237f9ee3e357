-- The outbox: every event lives here from publication to the end of its retention.
--
-- The primary key carries occurred_at because the table will be partitioned by it: nothing may
-- rely on id alone being unique, and no foreign key may refer to this table.

-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;

create table core.outbox (
  id uuid not null default core.uuid_v7(),
  event_type text not null,
  event_version integer not null,
  occurred_at timestamptz not null default clock_timestamp(),
  source text not null,
  target text null,
  content_class text not null,
  channel text not null default 'outbox_default',
  generation bigint not null,
  workspace_id uuid null,
  payload jsonb not null,
  idempotency_key text not null,
  trace_context text null,
  status text not null default 'pending',
  attempts integer not null default 0,
  last_error text null,
  handler_failures jsonb not null default '{}',
  failure_history jsonb not null default '[]',
  first_failed_at timestamptz null,
  created_at timestamptz not null default clock_timestamp(),
  available_at timestamptz not null default clock_timestamp(),
  claim_token uuid null,
  claimed_at timestamptz null,
  delivered_at timestamptz null,
  deleted_at timestamptz null,
  constraint outbox_pk primary key (id, occurred_at),
  constraint outbox_event_type_form check (event_type ~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)+$' and octet_length(event_type) <= 128),
  constraint outbox_event_version_range check (event_version between 1 and 1000000),
  constraint outbox_source_known check (source in ('platform', 'worlds', 'core')),
  constraint outbox_target_known check (target in ('platform', 'worlds', 'core')),
  constraint outbox_content_class_known check (content_class in ('operational', 'workspace')),
  constraint outbox_channel_form check (channel ~ '^[a-z][a-z0-9_]*$' and octet_length(channel) <= 63),
  constraint outbox_generation_range check (generation between 1 and 999999999999),
  constraint outbox_payload_object check (jsonb_typeof(payload) = 'object'),
  -- loose bounds in bytes as stored; core.outbox_insert has the exact one of the payload
  constraint outbox_sizes check (pg_column_size(payload) <= 16777216 and pg_column_size(handler_failures) <= 1048576),
  constraint outbox_idempotency_key_size check (octet_length(idempotency_key) between 1 and 640),
  constraint outbox_trace_context_size check (octet_length(trace_context) between 1 and 512),
  constraint outbox_status_known check (status in ('pending', 'in_flight', 'delivered', 'failed')),
  constraint outbox_attempts_range check (attempts between 0 and 1000000000),
  constraint outbox_last_error_size check (octet_length(last_error) <= 8192),
  constraint outbox_handler_failures_object check (jsonb_typeof(handler_failures) = 'object'),
  constraint outbox_failure_history_array check (jsonb_typeof(failure_history) = 'array'),
  constraint outbox_times_finite check (isfinite(occurred_at) and isfinite(created_at) and available_at between '2000-01-01 00:00:00+00' and '2999-01-01 00:00:00+00'),
  constraint outbox_in_flight_has_token check ((status = 'in_flight') = (claim_token is not null))
) with (
  -- rows are updated once or twice and swept in batches: vacuum by count, not by share of a big table
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);

comment on table core.outbox is 'Transactional outbox: one row per published event.';
comment on column core.outbox.generation is 'deployment generation whose workers handle the row';
comment on column core.outbox.channel is 'NOTIFY channel: outbox_gen_<N> or outbox_gen_<N>_<class>';
comment on column core.outbox.attempts is 'dispatches in the current cycle';
comment on column core.outbox.available_at is 'not claimed before this time of the database clock';
comment on column core.outbox.last_error is 'Class: handler: message, for the latest failed dispatch of the current cycle';
comment on column core.outbox.handler_failures is 'per failing handler: {failures, free, parked, class, error}';
comment on column core.outbox.claimed_at is 'set by lease, heartbeat and fail; cleared by replay; for a failed row the time it failed';

-- what claims and looks read: the due rows of one type in one generation, oldest first
create index outbox_due on core.outbox (generation, event_type, available_at)
  where status = 'pending' and deleted_at is null;

grant select on core.outbox to spectral_operator;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  if exists (select from core.outbox) then
    raise exception 'core.outbox is not empty: going down would lose events';
  end if;
end
$$;
-- +goose StatementEnd
drop table core.outbox;
