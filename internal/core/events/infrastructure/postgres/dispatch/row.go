package dispatch

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// Row is a claimed row of core.outbox.
type Row struct {
	Envelope     events.Envelope
	ContentClass string
	Attempts     int       // before this dispatch
	AvailableAt  time.Time // row-locked: tells this dispatch of the row from any later one
	Token        uuid.UUID // leased: the same
	Failures     map[string]HandlerFailure
	Corrupt      error // why Failures could not be read
	Crashes      int   // how many workers died while they held it
}

// NewRow returns the row of a claim.
func NewRow(r coredb.ClaimRow) Row {
	row := Row{
		Envelope: events.Envelope{
			EventID: r.EventID, EventType: r.EventType, EventVersion: int(r.EventVersion), OccurredAt: r.OccurredAt,
			Source: events.Scope(r.Source), Target: events.Scope(r.Target),
			WorkspaceID: uuid.NullUUID{UUID: r.WorkspaceID, Valid: r.WorkspaceID != uuid.Nil},
			Payload:     json.RawMessage(r.Payload), IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext,
		},
		ContentClass: r.ContentClass, Attempts: int(r.Attempts), AvailableAt: r.AvailableAt, Crashes: int(r.Crashes),
	}
	if err := json.Unmarshal([]byte(r.HandlerFailures), &row.Failures); err != nil {
		row.Failures, row.Corrupt = nil, fmt.Errorf("column handler_failures of this row: %w", err)
	}
	return row
}

// Keys returns the primary keys of rows, as SQL functions take them.
func Keys(rows []Row) (ids []uuid.UUID, occurredAts []time.Time) {
	ids, occurredAts = make([]uuid.UUID, len(rows)), make([]time.Time, len(rows))
	for i, row := range rows {
		ids[i], occurredAts[i] = row.Envelope.EventID, row.Envelope.OccurredAt
	}
	return ids, occurredAts
}
