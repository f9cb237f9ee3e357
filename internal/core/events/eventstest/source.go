package eventstest

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// Source returns the events that were published in their order, as consumers get them.
type Source interface {
	Events(ctx context.Context) ([]events.Envelope, error)
}

// OutboxSource is the outbox of a database as a [Source].
type OutboxSource struct {
	db        events.Tx
	workspace uuid.NullUUID
}

// Outbox is the outbox of the database that db leads to, for a role that may read all of it: the tests' superuser, or
// a member of spectral_operator. A pool is as good as a transaction.
func Outbox(db events.Tx) OutboxSource { return OutboxSource{db: db} }

// InWorkspace is s without the events of other workspaces, or of none.
func (s OutboxSource) InWorkspace(workspace uuid.UUID) OutboxSource {
	s.workspace = uuid.NullUUID{UUID: workspace, Valid: true}
	return s
}

// Events implements [Source].
func (s OutboxSource) Events(ctx context.Context) ([]events.Envelope, error) {
	outcomes, err := Outcomes(ctx, s.db)
	if err != nil {
		return nil, err
	}
	var envelopes []events.Envelope
	for _, o := range outcomes {
		if !s.workspace.Valid || o.Envelope.WorkspaceID == s.workspace {
			envelopes = append(envelopes, o.Envelope)
		}
	}
	return envelopes, nil
}

// Status of an event in the outbox.
type Status string

// The statuses of an event.
const (
	Pending   Status = "pending"
	InFlight  Status = "in_flight"
	Relayed   Status = "relayed"
	Delivered Status = "delivered"
	Failed    Status = "failed"
)

// Settled reports whether nothing more will become of the event by itself.
func (s Status) Settled() bool { return s == Delivered || s == Failed }

// Outcome is what has become of an event.
type Outcome struct {
	Publication
	Status   Status
	Attempts int // counted dispatches
	// LastError has a line for each handler that failed, Class: handler: message. That of an event which was delivered
	// after a failure is kept.
	LastError string
	// Failures of handlers that have not handled the event.
	Failures map[string]Failure
	// HandledBy are the handlers that have handled the event's idempotency key, by name.
	HandledBy  []string
	Generation events.Generation
	// Waiting: something is still to become of it, and not only because it was scheduled for later.
	Waiting bool
}

// Failure is what is recorded of a handler that failed.
type Failure struct {
	Failures int    `json:"failures"` // counted ones
	Parked   bool   `json:"parked"`   // it will not run again
	Class    string `json:"class"`
	Error    string `json:"error"`
}

// waiting says of a row that it has something ahead which is not its own time: a row that waits for a retry is waiting.
const waiting = `(o.status in ('pending', 'in_flight', 'relayed') and not (o.status = 'pending' and o.attempts = 0
	and o.available_at > clock_timestamp() and o.available_at > o.created_at and o.last_error is null and o.crashes = 0))`

// Outcomes reads what has become of every event in the outbox of the database that db leads to, in the order they were
// published. See [Outbox] for who may.
func Outcomes(ctx context.Context, db events.Tx) ([]Outcome, error) {
	rows, err := db.Query(ctx, `
		select o.id, o.event_type, o.event_version, o.occurred_at, o.source, coalesce(o.target, ''), o.workspace_id,
		  o.payload, o.idempotency_key, coalesce(o.trace_context, ''), o.available_at, o.status, o.attempts,
		  coalesce(o.last_error, ''), o.handler_failures, o.generation, `+waiting+`,
		  coalesce((select array_agg(h.handler_name order by h.handler_name) from core.event_handled h
		            where h.idempotency_key = o.idempotency_key), '{}')
		from core.outbox o
		where o.deleted_at is null
		order by o.created_at, o.id`)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	defer rows.Close()
	var outcomes []Outcome
	for rows.Next() {
		var o Outcome
		e := &o.Envelope
		if err := rows.Scan(&e.EventID, &e.EventType, &e.EventVersion, &e.OccurredAt, &e.Source, &e.Target,
			&e.WorkspaceID, &e.Payload, &e.IdempotencyKey, &e.TraceContext, &o.AvailableAt, &o.Status, &o.Attempts,
			&o.LastError, &o.Failures, &o.Generation, &o.Waiting, &o.HandledBy); err != nil {
			break // rows.Err has it
		}
		e.OccurredAt, o.AvailableAt = e.OccurredAt.UTC(), o.AvailableAt.UTC()
		outcomes = append(outcomes, o)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return outcomes, nil
}
