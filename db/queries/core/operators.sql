-- name: OperatorEventsOfID :many
-- The events of an id. Year 1 stands for one that has not settled.
select o.occurred_at,
  coalesce(case when o.status = 'failed' then o.claimed_at
    else o.delivered_at end, '0001-01-01 00:00:00+00')::timestamptz as settled_at
from core.outbox o where o.id = @id::uuid order by o.occurred_at limit 2;

-- name: StepOperation :many
-- In how many seconds the next step is of use; -1: there is none.
select coalesce(s.next_in, -1)::double precision as next_in, s.operation::uuid as operation
from core.operation_step() as s;

-- name: OperatorStates :many
-- What has become of events, that were to be replayed into the generation; 0: into none.
select k.id::uuid as event_id, k.occurred_at::timestamptz as occurred_at,
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
    when o.status = 'pending' and o.waiting_for is not null then 'waiting for the breaker of ' || o.waiting_for
    else o.status end::text as state
from (select unnest(@ids::uuid[]) as id, unnest(@occurred_ats::timestamptz[]) as occurred_at) as k
left join core.outbox o on o.id = k.id and o.occurred_at = k.occurred_at
left join core.retention_policies p on p.subject = 'outbox_row' and p.content_class = '*';
