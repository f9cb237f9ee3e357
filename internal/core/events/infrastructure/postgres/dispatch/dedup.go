package dispatch

import (
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// DedupKeys are the dedup keys of a batch. Of duplicates within it, the first runs. The zero value is ready.
type DedupKeys struct {
	params  coredb.ClaimKeysParams
	first   map[dedupKey]int // the place in the batch of the row that runs for a key
	claimed map[dedupKey]bool
}

// dedupKey is the primary key of core.event_handled.
type dedupKey struct{ handler, key string }

// Add adds the key of a handler for the row at place.
func (k *DedupKeys) Add(r events.Registration, row Row, place int) {
	e := row.Envelope
	key := dedupKey{r.Name, e.IdempotencyKey}
	if _, duplicate := k.first[key]; duplicate {
		return
	}
	if k.first == nil {
		k.first = make(map[dedupKey]int)
	}
	k.first[key] = place
	k.params.HandlerNames = append(k.params.HandlerNames, r.Name)
	k.params.IdempotencyKeys = append(k.params.IdempotencyKeys, e.IdempotencyKey)
	k.params.EventIds = append(k.params.EventIds, e.EventID)
	k.params.EventTypes = append(k.params.EventTypes, e.EventType)
	k.params.WorkspaceIds = append(k.params.WorkspaceIds, e.WorkspaceID.UUID)
	k.params.ContentClasses = append(k.params.ContentClasses, row.ContentClass)
}

// Runs reports, once the keys are claimed, whether a handler runs for the row at place.
func (k *DedupKeys) Runs(r events.Registration, row Row, place int) bool {
	key := dedupKey{r.Name, row.Envelope.IdempotencyKey}
	first, ok := k.first[key]
	return ok && first == place && k.claimed[key]
}
