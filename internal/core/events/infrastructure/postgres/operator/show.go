package operator

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Detail is all that is known about an event.
type Detail struct {
	Event
	// The rest of the envelope.
	Payload        json.RawMessage `json:"payload"`
	IdempotencyKey string          `json:"idempotency_key"`
	TraceContext   *string         `json:"trace_context"`
	Corrects       *uuid.UUID      `json:"corrects"` // the event of which it is a corrected copy

	Class        string  `json:"class"` // of its channel; [events.DefaultClass] if that has no name
	ContentClass string  `json:"content_class"`
	ClaimedBy    *string `json:"claimed_by"` // the worker that has it in flight
	LeaseHandler *string `json:"lease_handler"`
	// LeaseExpiresAt is when the event is pending again unless that worker renews its lease.
	LeaseExpiresAt *time.Time `json:"lease_expires_at"`

	Handlers []HandlerState `json:"handlers"`
	// Workers is the number of live workers of the event's generation that handle its type.
	Workers int `json:"workers"`
	// Paused is the pause of the event's type in its generation; nil: it is not paused.
	Paused *Pause `json:"pause"`
	// History has the entries of failure_history, verbatim: replays with the cycle before them, discards and
	// undiscards, leases that ran out. If n older entries were dropped, the first entry is {"omitted": n}.
	History []json.RawMessage `json:"failure_history"`
	Actions []Action          `json:"actions"` // the earliest first; if there are very many, the latest of them
	// FailedAttempts are the latest ten of each handler, the earliest first.
	FailedAttempts []FailedAttempt `json:"failed_attempts"`
	Causes         []Relative      `json:"causes"`  // the first cause first
	Effects        []Relative      `json:"effects"` // each behind its cause
}

// FailedAttempt is a call of a handler that failed: a row of core.failed_attempts. The handler outbox stands for the
// row.
type FailedAttempt struct {
	Handler    string    `json:"handler"`
	Attempt    int       `json:"attempt"`
	Cycle      int       `json:"cycle"` // how often the event had been replayed
	StartedAt  time.Time `json:"started_at"`
	DurationMs int64     `json:"duration_ms"`
	Worker     string    `json:"worker"`
	ErrorClass string    `json:"error_class"`
	Error      string    `json:"error"`
	Stack      *string   `json:"stack"` // of a panic
	TraceID    *string   `json:"trace_id"`
	GroupID    string    `json:"group_id"`
}

// HandlerState is the state of one handler of an event.
type HandlerState struct {
	Handler string `json:"handler"`
	// Stage is handled; skipped (an operator's replay left it out); failing (it is retried); parked (it failed for good in
	// this cycle); or, for a handler of a live worker: to_run; not_run (it did not exist when the event settled);
	// not_target (it is of another context).
	Stage     string     `json:"stage"`
	HandledAt *time.Time `json:"handled_at"`
	// HandledAs is the event with the same key that was handled instead, if it is another one.
	HandledAs *uuid.UUID `json:"handled_as,omitempty"`
	// OtherPayload says that the payload of that one differs: the key names too much.
	OtherPayload bool   `json:"other_payload,omitempty"`
	Failures     int    `json:"failures"`       // counted ones
	Free         int    `json:"free,omitempty"` // in a row that were not counted
	Class        string `json:"class,omitempty"`
	Error        string `json:"error,omitempty"`
	// Workers is the number of live workers with the most common handler.
	Workers int `json:"-"`
}

// Show returns all that is known about the event of that id, or about each, if several that occurred at different times
// share it. If there is none it returns a [*RefusedError] (SP031).
func (c *Client) Show(ctx context.Context, id uuid.UUID) (all []Detail, err error) {
	err = c.search(ctx, "show event", 0, func(tx *pgtx.Tx, _ time.Time) error {
		// jsonb is read as text, because the driver would parse it, and fail where Go cannot
		all, err = rows[Detail](ctx, tx, "select "+displayed+`,
  core.event_payload(o.id, o.occurred_at) as payload, o.corrects, o.idempotency_key, o.trace_context,
  o.content_class, o.claimed_by, o.lease_handler,
  coalesce(substring(o.channel from '^outbox_gen_[0-9]+_(.+)$'), '`+events.DefaultClass+`') as class,
  case when o.status = 'in_flight' and isfinite(o.claimed_at)
    then o.claimed_at + make_interval(secs => o.lease_seconds) end as lease_expires_at,
  array(select h::text from jsonb_array_elements(o.failure_history) with ordinality as e(h, n) order by n) as history
from core.outbox o where o.id = $1 order by o.occurred_at`, id)
		if err == nil && len(all) == 0 {
			err = unknownEvent(id)
		}
		if err != nil {
			return err
		}
		acts, err := actions(ctx, tx, []uuid.UUID{id}, ActionFilter{}.where(), MaxPageSize, false)
		if err != nil {
			return err
		}
		slices.Reverse(acts)
		paused, err := rows[Pause](ctx, tx, pauses)
		for i := range all {
			d := &all[i]
			for _, pause := range paused {
				if pause.EventType == d.EventType && pause.Generation == d.Generation {
					d.Paused = &pause
				}
			}
			d.Actions = acts
			if err == nil {
				d.Handlers, err = rows[HandlerState](ctx, tx, handlerStates, id, d.OccurredAt)
			}
			if err == nil {
				d.FailedAttempts, err = rows[FailedAttempt](ctx, tx, `
select f.handler_name as handler, f.attempt, f.cycle, f.started_at, f.duration_ms, f.worker, f.error_class, f.error,
  f.stack, f.trace_id, f.group_id
from core.failed_attempts f where f.event_id = $1 and f.occurred_at = $2 order by f.started_at, f.handler_name`,
					id, d.OccurredAt)
			}
			if err == nil {
				d.Causes, d.Effects, err = relatives(ctx, tx, id)
			}
			for _, s := range d.Handlers {
				d.Workers = s.Workers
			}
		}
		return err
	})
	return all, err
}

// handlerStates returns each handler that has handled or failed an event, or has still to run; a handler counts for the
// first of these. It finds the few names in core.event_handled without reading all of it, because its key begins with
// them. Entries of handler_failures that were written by hand are shown verbatim.
const handlerStates = `with recursive
event as (
  select o.id, o.occurred_at, o.generation, o.event_type, o.idempotency_key, o.target, o.handler_failures,
    o.status in ('delivered', 'failed') or o.deleted_at is not null as settled
  from core.outbox o where o.id = $1 and o.occurred_at = $2),
known(name) as (
  (select h.handler_name from core.event_handled h order by h.handler_name limit 1)
  union all
  select (select h.handler_name from core.event_handled h where h.handler_name > k.name order by h.handler_name limit 1)
  from known k where k.name is not null),
live as (
  select n.name, max(count(*)::int) over () as workers
  from event e join core.live_workers w on w.generation = e.generation
  cross join lateral jsonb_array_elements_text(case when jsonb_typeof(w.handlers -> e.event_type) = 'array'
    then w.handlers -> e.event_type else '[]' end) as n(name)
  group by n.name),
states as (
  select 1 as rank, k.name as handler, h.outcome as stage, h.handled_at, nullif(h.event_id, e.id) as handled_as,
    null::jsonb as failed, exists (select from core.outbox x
      where x.id = h.event_id and x.id <> e.id and core.event_payload(x.id, x.occurred_at)
        <> core.event_payload(e.id, e.occurred_at)) as other_payload
  from event e cross join known k cross join lateral
    (select h.handled_at, h.event_id, h.outcome from core.event_handled h
     where h.handler_name = k.name and h.idempotency_key = e.idempotency_key and h.event_type = e.event_type offset 0) h
  union all
  select 2, f.key, case when f.value -> 'parked' = 'true' then 'parked' else 'failing' end, null, null, f.value, false
  from event e cross join lateral jsonb_each(e.handler_failures) f
  union all
  select 3, l.name, case when split_part(l.name, '.', 1) <> e.target then 'not_target'
    when e.settled then 'not_run' else 'to_run' end, null, null, null, false
  from event e cross join live l)
select distinct on (s.handler) s.handler, s.stage, s.handled_at, s.handled_as, s.other_payload,
  coalesce(substring(s.failed ->> 'failures', '^\d{1,9}$')::int, 0) as failures,
  coalesce(substring(s.failed ->> 'free', '^\d{1,9}$')::int, 0) as free,
  coalesce(s.failed ->> 'class', '') as class,
  case when jsonb_typeof(s.failed) = 'object' then coalesce(s.failed ->> 'error', '')
    else coalesce(s.failed::text, '') end as error,
  coalesce((select max(l.workers) from live l), 0) as workers
from states s order by s.handler, s.rank`
