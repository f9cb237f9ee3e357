-- The empty text stands for null wherever an operator is named or gives a reason.

-- name: OperatorReplay :many
select r.event_id::uuid as event_id, r.occurred_at::timestamptz as occurred_at
from core.outbox_replay_many(@ids::uuid[], @generation::bigint, nullif(@by_whom::text, ''),
  @occurred_ats::timestamptz[],
  @settled_before::timestamptz, @force::boolean) as r;

-- name: OperatorReplayable :exec
-- Refuses an event that cannot be replayed.
select from core.outbox_replay_preview(@id::uuid, @generation::bigint, null, @force::boolean);

-- name: OperatorReplayPreview :many
-- The empty text stands for no handler and no note, year 1 for no time.
select p.event_id::uuid as event_id, p.occurred_at::timestamptz as occurred_at, p.event_type::text as event_type,
  coalesce(p.handler, '')::text as handler, p.would_run::boolean as would_run,
  coalesce(p.handled_at, '0001-01-01 00:00:00+00')::timestamptz as handled_at, coalesce(p.note, '')::text as note
from core.outbox_replay_preview_many(@ids::uuid[], @generation::bigint, @occurred_ats::timestamptz[]) as p;

-- name: OperatorDiscard :many
select r.event_id::uuid as event_id, r.occurred_at::timestamptz as occurred_at
from core.outbox_discard_many(@ids::uuid[], nullif(@by_whom::text, ''), nullif(@reason::text, ''),
  @occurred_ats::timestamptz[],
  @failed_before::timestamptz) as r;

-- name: OperatorDiscardOne :exec
select core.outbox_discard(@id::uuid, nullif(@by_whom::text, ''), nullif(@reason::text, ''));

-- name: OperatorUndiscard :many
select r.event_id::uuid as event_id, r.occurred_at::timestamptz as occurred_at
from core.outbox_undiscard_many(@ids::uuid[], nullif(@by_whom::text, ''), @occurred_ats::timestamptz[]) as r;

-- name: OperatorUndiscardOne :exec
select core.outbox_undiscard(@id::uuid, nullif(@by_whom::text, ''));

-- name: OperatorRetryNow :many
select r.event_id::uuid as event_id, r.occurred_at::timestamptz as occurred_at
from core.outbox_retry_now_many(@ids::uuid[], nullif(@by_whom::text, ''), @occurred_ats::timestamptz[]) as r;

-- name: OperatorRetryNowOne :exec
select core.outbox_retry_now(@id::uuid, nullif(@by_whom::text, ''));

-- name: OperatorEventsOfID :many
-- The events of an id. Year 1 stands for one that has not settled.
select o.occurred_at,
  coalesce(case when o.status = 'failed' then o.claimed_at
    else o.delivered_at end, '0001-01-01 00:00:00+00')::timestamptz as settled_at
from core.outbox o where o.id = @id::uuid order by o.occurred_at limit 2;

-- name: OperatorStates :many
-- What has become of events, that were to be replayed into the generation; 0: into none.
select k.id::uuid as id, k.occurred_at::timestamptz as occurred_at,
  case when o.id is null then 'gone'
    when o.discarded_at is not null then case
      when o.deleted_at > clock_timestamp() - p.tombstoned_grace_days * interval '24 hours'
      then 'discarded' else 'past its days of grace' end
    when o.deleted_at is not null then 'expired'
    when o.status = 'failed' and o.claimed_at >= @as_of::timestamptz then 'failed again'
    when o.status = 'delivered' and o.delivered_at >= @as_of::timestamptz then 'delivered again'
    when o.status in ('failed', 'delivered') and @generation::bigint > 0
      and core.unconsumed(o.event_type, o.event_version,
        @generation::bigint) then 'of a type that no handler consumes there'
    else o.status end::text as state
from (select unnest(@ids::uuid[]) as id, unnest(@occurred_ats::timestamptz[]) as occurred_at) as k
left join core.outbox o on o.id = k.id and o.occurred_at = k.occurred_at
left join core.retention_policies p on p.subject = 'outbox_row' and p.content_class = '*';

-- name: PauseType :exec
select core.event_type_pause(@event_type::text, @generation::bigint, nullif(@by_whom::text, ''),
  nullif(@reason::text, ''));

-- name: ResumeType :exec
select core.event_type_resume(@event_type::text, @generation::bigint, nullif(@by_whom::text, ''));

-- name: PausedTypes :many
select p.event_type, p.generation, p.paused_at, p.paused_by, p.reason from core.paused_types p order by p.generation,
  p.event_type;
