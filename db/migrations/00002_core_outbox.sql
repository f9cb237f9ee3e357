-- The tables of the outbox: deployments, event types, events, and the dedup log.
-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

-- Deployment generations. A worker handles only the events of its generation; the highest
-- live one is what SQL publishing stamps by default.
create table core.deployments (
  generation bigint not null,
  status text not null default 'live',
  registered_at timestamptz not null default clock_timestamp(),
  draining_at timestamptz null,
  closed_at timestamptz null,
  closed_xid xid8 null,
  closed_bound xid8 null,
  retired_at timestamptz null,
  constraint deployments_pk primary key (generation),
  constraint deployments_generation_positive check (generation between 1 and 999999999999),
  constraint deployments_status_known check (status in ('live', 'draining', 'retired'))
);
create index deployments_live on core.deployments (generation) where status = 'live'; -- however many are retired
comment on table core.deployments is 'Deployment generations: live, draining or retired.';
comment on column core.deployments.closed_at is 'since when it takes no events: it is being retired';
comment on column core.deployments.closed_xid is 'the transaction that closed it';
comment on column core.deployments.closed_bound is 'transactions that published into it before have lower ids';
grant select on core.deployments to spectral_worker, spectral_operator;

-- The event types that may be published, as the contracts in the code declare them. Written by
-- `workers migrate up` and at every worker start, read by the publishing functions, so that SQL
-- refuses what Go refuses.
create table core.event_types (
  event_type text not null,
  event_version integer not null,
  source text not null,
  class text null,
  content_class text not null,
  consumed boolean not null,
  consumed_in jsonb not null default '{}',
  payload_schema jsonb null,
  payload_rules jsonb null,
  payload_fault jsonpath null,
  sensitive text[] not null default '{}',
  deadline timestamptz null,
  successor text null,
  registered_by bigint not null,
  registered_at timestamptz not null default clock_timestamp(),
  constraint event_types_pk primary key (event_type, event_version),
  constraint event_types_version_positive check (event_version between 1 and 1000000),
  constraint event_types_source_known check (source in ('platform', 'worlds', 'core')),
  constraint event_types_class_form check (class ~ '^[a-z][a-z0-9_]{0,29}$'),
  constraint event_types_content_class_known check (content_class in ('operational', 'workspace')),
  constraint event_types_rules_complete check ((payload_fault is null) = (payload_rules is null)),
  constraint event_types_deprecation_complete check ((deadline is null) = (successor is null)),
  constraint event_types_deadline_finite check (isfinite(deadline))
);
comment on table core.event_types is 'Registered event types; the contracts in the code are their source.';
comment on column core.event_types.sensitive is 'payload fields that viewers do not see (core.payload_masked)';
comment on column core.event_types.class is 'processing class: the suffix of channel outbox_gen_<N>_<class>, or null';
comment on column core.event_types.consumed is 'false: it has no handler and is settled when it is published';
comment on column core.event_types.registered_by is 'generation of the code that wrote the row; older code leaves it';
comment on column core.event_types.consumed_in is 'by generation, whether it handles the type; others: see consumed';
comment on column core.event_types.payload_schema is 'JSON Schema of the payload; null if an older build registered it';
comment on column core.event_types.payload_rules is 'the schema as an array of rules for core.payload_violations';
comment on column core.event_types.payload_fault is 'finds something if any of the rules is broken';
comment on column core.event_types.deadline is 'a deprecated type is refused from then on; null if not deprecated';
comment on column core.event_types.successor is 'the event type to publish instead of a deprecated one';
grant select on core.event_types to spectral_publisher, spectral_worker, spectral_operator;

-- Which role may publish as which source. A login publishes as a source when it is, or inherits
-- from, a role listed here; to let a new login publish as worlds and do nothing else:
--
--   grant spectral_publisher to my_login;
--   insert into core.publisher_sources (role_name, source) values ('my_login', 'worlds');
create table core.publisher_sources (
  role_name text not null,
  source text not null,
  constraint publisher_sources_pk primary key (role_name, source),
  constraint publisher_sources_source_known check (source in ('platform', 'worlds', 'core'))
);
comment on table core.publisher_sources is 'Which role may publish as which source.';

insert into core.publisher_sources (role_name, source) values
  ('spectral_platform', 'platform'),
  ('spectral_worlds', 'worlds'),
  ('spectral_owner', 'core');
grant select on core.publisher_sources to spectral_publisher, spectral_operator;

-- The outbox: every event lives here from publication to the end of its retention.
--
-- The primary key carries occurred_at because the table will be partitioned by it: nothing may
-- rely on id alone being unique, and no foreign key may refer to this table.
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
  crashes integer not null default 0,
  failure_history jsonb not null default '[]',
  first_failed_at timestamptz null,
  created_at timestamptz not null default clock_timestamp(),
  available_at timestamptz not null default clock_timestamp(),
  claim_token uuid null,
  claimed_at timestamptz null,
  claimed_by text null,
  lease_seconds double precision not null default 300,
  lease_handler text null,
  relayed_at timestamptz null,
  delivered_at timestamptz null,
  discarded_at timestamptz null,
  undiscarded_at timestamptz null,
  deleted_at timestamptz null,
  cause_id uuid null,
  corrects uuid null,
  waiting_for text null,
  constraint outbox_pk primary key (id, occurred_at),
  -- Only these: Postgres parses all CHECKs of a table for each statement. They keep out what would stop other rows:
  -- polls, claims and the reaper compute with these times, and lists read handler_failures.
  constraint outbox_content_class_known check (content_class in ('operational', 'workspace')),
  constraint outbox_status_known check (status in ('pending', 'in_flight', 'relayed', 'delivered', 'failed')),
  constraint outbox_handler_failures_object check (jsonb_typeof(handler_failures) = 'object'),
  constraint outbox_times_finite check (isfinite(occurred_at) and isfinite(available_at)
    and lease_seconds > 0 and lease_seconds <= 86400)
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
comment on column core.outbox.last_error is 'Class: handler: message, of the current cycle''s latest failure';
comment on column core.outbox.handler_failures is 'per failing handler: {failures, free, parked, class, error}';
comment on column core.outbox.claimed_at is 'set by lease, heartbeat and fail; of a failed row, when it failed';
comment on column core.outbox.lease_seconds is 'how long the lease of an in_flight row lasts from claimed_at on';
comment on column core.outbox.claimed_by is 'the worker that has the row in flight: its worker_id and its name';
comment on column core.outbox.lease_handler is 'which handler of an in_flight row runs, where that is known';
comment on column core.outbox.relayed_at is 'when a broker took it; -infinity: the broker refused it. It is sent once';
comment on column core.outbox.crashes is 'worker crashes charged to the row: from 1 on it runs alone, at 5 it fails';
comment on column core.outbox.discarded_at is 'when an operator discarded the event; null for a tombstone of retention';
comment on column core.outbox.cause_id is 'the event whose handler published this one; it may be gone';
comment on column core.outbox.corrects is 'the event of which this one is a corrected copy (core.outbox_correct)';
comment on column core.outbox.waiting_for is 'the handler whose breaker is open: due when that closes (core.breakers)';
comment on column core.outbox.undiscarded_at is
  'when an operator took a discard back (core.outbox_undiscard), until the next; retention keeps the event for its '
    'grace from then';

-- what claims and looks read: the due rows of one type in one generation, oldest first
create index outbox_due on core.outbox (generation, event_type, available_at)
  where status = 'pending' and deleted_at is null;

-- Rows with crashes are claimed apart from the others, and found without a search.
create index outbox_crashed on core.outbox (generation, event_type, available_at)
  where status = 'pending' and deleted_at is null and crashes > 0;

-- What is in flight is little, and found without a search. Not by claimed_at: a heartbeat then need not write
-- an index.
create index outbox_in_flight on core.outbox (id, occurred_at) where status = 'in_flight' and deleted_at is null;

-- What a broker has, by the time it was sent: what it may have lost is found first.
create index outbox_relayed on core.outbox (generation, event_type, relayed_at)
  where status = 'relayed' and deleted_at is null;

-- Dead letters in the order in which they are read, few among the many that are delivered; by whom and for whom is told
-- without a look at the rows. Only what fails or is discarded writes these indexes. That claimed_at is in one makes a
-- heartbeat write the others of its row, the primary key and outbox_in_flight.
create index outbox_failed on core.outbox (claimed_at, id, occurred_at, source, workspace_id)
  where status = 'failed' and deleted_at is null;
create index outbox_discarded on core.outbox (claimed_at, id, occurred_at, source, workspace_id)
  where status = 'failed' and deleted_at is not null;

-- What the sweep finds rows by, and nothing that publishing, claiming or delivering an ordinary event writes:
-- tombstones, which only the sweep and discarding make, and the keys of callers' own that are not delivered yet. The
-- default key is the event's id, and found by the primary key.
create index outbox_tombstoned on core.outbox (deleted_at) where deleted_at is not null;
create index outbox_own_keys on core.outbox (idempotency_key)
  where status <> 'delivered' and idempotency_key <> id::text;

-- What waits for a retry, few among the many that were never tried; and what an event caused.
create index outbox_retrying on core.outbox (first_failed_at)
  where status in ('pending', 'in_flight') and deleted_at is null and first_failed_at is not null;
create index outbox_caused on core.outbox (cause_id) where cause_id is not null;
grant select on core.outbox to spectral_operator;

-- The dedup log: a row says that a handler's transactional effect for a key is committed. Its
-- primary key is the race-free gate, never a SELECT before it.
create table core.event_handled (
  handler_name text not null,
  idempotency_key text not null,
  event_id uuid not null,
  event_type text not null,
  workspace_id uuid null,
  content_class text not null,
  handled_at timestamptz not null default clock_timestamp(),
  deleted_at timestamptz null,
  outcome text not null default 'handled',
  skipped_by text null,
  constraint event_handled_pk primary key (handler_name, idempotency_key),
  constraint event_handled_handler_name_form
    check (handler_name ~ '^[a-z][a-z0-9_]*[.][a-z][a-z0-9_]*$' and octet_length(handler_name) <= 128),
  constraint event_handled_idempotency_key_size check (octet_length(idempotency_key) between 1 and 640),
  constraint event_handled_content_class_known check (content_class in ('operational', 'workspace'))
) with (
  -- the sweep leaves as many dead rows as there are live ones of a day: vacuum by count
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);
comment on table core.event_handled is 'Which handler has handled which idempotency key.';
comment on column core.event_handled.outcome is 'handled, or skipped: an operator''s replay left the handler out';
comment on column core.event_handled.skipped_by is 'that operator';
-- never UPDATE or DELETE for the busy role: forgetting a key would let an effect happen twice
grant select, insert on core.event_handled to spectral_worker;
grant select on core.event_handled to spectral_operator;

-- for the sweep
create index event_handled_tombstoned on core.event_handled (deleted_at) where deleted_at is not null;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('core.event_handled', 'core.outbox', 'core.deployments');
-- +goose StatementBegin
do $$
begin
  if exists (select from core.publisher_sources
             where (role_name, source) not in
               (('spectral_platform', 'platform'), ('spectral_worlds', 'worlds'), ('spectral_owner', 'core'))) then
    raise exception 'core.publisher_sources has rows that you added: going down would lose them';
  end if;
end
$$;
-- +goose StatementEnd
drop table core.event_handled, core.outbox, core.publisher_sources, core.event_types, core.deployments;
