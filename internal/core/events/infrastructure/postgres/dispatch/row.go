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
	if r.HandlerFailures == "{}" { // nearly always
		return row
	}
	if err := json.Unmarshal([]byte(r.HandlerFailures), &row.Failures); err != nil {
		row.Failures, row.Corrupt = nil, fmt.Errorf("column handler_failures of this row: %w", err)
	}
	return row
}

// Keys returns the primary keys of rows and the tokens of their leases, as SQL functions take them.
func Keys(rows []Row) (ids []uuid.UUID, occurredAts []time.Time, tokens []uuid.UUID) {
	ids, occurredAts, tokens = make([]uuid.UUID, len(rows)), make([]time.Time, len(rows)), make([]uuid.UUID, len(rows))
	for i, row := range rows {
		ids[i], occurredAts[i], tokens[i] = row.Envelope.EventID, row.Envelope.OccurredAt, row.Token
	}
	return ids, occurredAts, tokens
}

// DedupKeys are the dedup keys of a batch. Of duplicates within it, the first runs.
type DedupKeys struct {
	params coredb.ClaimKeysParams
	first  map[dedupKey]int // the place in the batch of the row that runs for a key
}

// dedupKey is the primary key of core.event_handled.
type dedupKey struct{ handler, key string }

// NewDedupKeys returns an empty DedupKeys with room for so many keys.
func NewDedupKeys(room int) *DedupKeys {
	return &DedupKeys{first: make(map[dedupKey]int, room), params: coredb.ClaimKeysParams{
		HandlerNames: make([]string, 0, room), IdempotencyKeys: make([]string, 0, room),
		EventIds: make([]uuid.UUID, 0, room), WorkspaceIds: make([]uuid.UUID, 0, room),
		ContentClasses: make([]string, 0, room),
	}}
}

// Add adds the key of a handler for the row at place.
func (k *DedupKeys) Add(r events.Registration, row Row, place int) {
	e := row.Envelope
	key := dedupKey{r.Name, e.IdempotencyKey}
	if _, duplicate := k.first[key]; duplicate {
		return
	}
	k.first[key] = place
	k.params.HandlerNames = append(k.params.HandlerNames, r.Name)
	k.params.IdempotencyKeys = append(k.params.IdempotencyKeys, e.IdempotencyKey)
	k.params.EventIds = append(k.params.EventIds, e.EventID)
	k.params.WorkspaceIds = append(k.params.WorkspaceIds, e.WorkspaceID.UUID)
	k.params.ContentClasses = append(k.params.ContentClasses, row.ContentClass)
}

// Runs reports, once the keys are claimed, whether a handler runs for the row at place.
func (k *DedupKeys) Runs(r events.Registration, row Row, place int) bool {
	first, ok := k.first[dedupKey{r.Name, row.Envelope.IdempotencyKey}]
	return ok && first == place
}
