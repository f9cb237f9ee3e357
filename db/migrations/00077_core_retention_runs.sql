-- What sweeps have done, and where the next goes on.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.retention_runs (
  run_id uuid not null,
  swept_by text not null,
  login text not null default session_user,
  by_hand boolean not null,
  started_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz null,
  steps jsonb not null default '{}',
  constraint retention_runs_pk primary key (run_id),
  constraint retention_runs_swept_by_size check (octet_length(swept_by) between 1 and 256),
  constraint retention_runs_steps_object check (jsonb_typeof(steps) = 'object')
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.retention_runs is 'Sweeps of the last 90 days, each of many transactions.';
comment on column core.retention_runs.updated_at is 'when the latest of its transactions swept';
comment on column core.retention_runs.ended_at is 'when nothing was left; null also for a run that was cut short';
comment on column core.retention_runs.steps is 'rows by step, like {"outbox_row.deleted": 12}';
create index retention_runs_started_at on core.retention_runs (started_at);
grant select on core.retention_runs to spectral_operator, spectral_retention;

create table core.retention_progress (
  subject text not null,
  after_id uuid null,
  after_occurred_at timestamptz null,
  next_block bigint null,
  from_deleted_at timestamptz not null default '-infinity',
  from_deleted_since timestamptz not null default '-infinity',
  walk_started_at timestamptz not null default '-infinity',
  walk_ended_at timestamptz null default '-infinity',
  constraint retention_progress_pk primary key (subject)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table core.retention_progress is 'Where the walk through each table is that looks for rows to tombstone, and the one through the tombstones.';
comment on column core.retention_progress.after_id is 'the walk goes on behind this key, null: from the first';
comment on column core.retention_progress.next_block is 'the walk goes on with this block of the table, null: the first';
comment on column core.retention_progress.from_deleted_at is 'earlier tombstones are dealt with: what an old snapshot keeps of them is not walked past again';
comment on column core.retention_progress.from_deleted_since is 'when that began, which it does anew in each run: what was locked is then found';
comment on column core.retention_progress.walk_ended_at is 'null while the walk is under way';
grant select on core.retention_progress to spectral_operator;

-- what is swept leaves as many dead rows as there are live ones of a day: vacuum by count, as core.outbox has it
alter table core.event_handled set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000);
reset role;

-- +goose Down
set local lock_timeout = '500ms';
alter table core.event_handled reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
drop table core.retention_progress;
drop table core.retention_runs;
