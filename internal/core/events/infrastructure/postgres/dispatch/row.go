package dispatch

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// Row is a claimed row of core.outbox.
type Row struct {
	Envelope     events.Envelope
	ContentClass string
	Attempts     int       // before this dispatch
	AvailableAt  time.Time // when it was due; row-locked: tells this dispatch of the row from any later one
	Token        uuid.UUID // leased: the same
	Failures     map[string]HandlerFailure
	Corrupt      error  // why Failures could not be read
	Relayed      bool   // it was sent to a broker before
	Replayed     bool   // by an operator
	Breakers     string // handlers of the type whose breakers are open, separated by blanks
	Crashes      int    // leased: how many workers died while they held it
}

// readRows reads the rows of a claim, at most limit, with the columns of the query Claim in their order.
func readRows(rows pgx.Rows, limit int, eventType string) ([]Row, error) {
	all := make([]Row, 0, limit)
	row := Row{Envelope: events.Envelope{EventType: eventType}}
	e, failures := &row.Envelope, ""
	_, err := pgx.ForEachRow(rows, []any{
		(*pgxuuid.UUID)(&e.EventID), &e.EventVersion, &e.OccurredAt, (*repeated)(&e.Source), (*repeated)(&e.Target),
		(*repeated)(&row.ContentClass), (*pgxuuid.UUID)(&e.WorkspaceID.UUID), (*[]byte)(&e.Payload), &e.IdempotencyKey,
		&e.TraceContext, &row.Attempts, &row.AvailableAt, (*repeated)(&failures), &row.Relayed, &row.Replayed,
		(*repeated)(&row.Breakers),
	}, func() error {
		e.WorkspaceID.Valid = e.WorkspaceID.UUID != uuid.Nil
		row.SetFailures(failures)
		all = append(all, row)
		return nil
	})
	return all, err
}

// repeated is a text that mostly is the same as in the row before.
type repeated string

// ScanBytes implements [pgtype.BytesScanner].
func (r *repeated) ScanBytes(text []byte) error {
	if string(text) != string(*r) {
		*r = repeated(text)
	}
	return nil
}

// Delivery returns what a handler is told of its call.
func (r *Row) Delivery() events.DeliveryInfo {
	return events.DeliveryInfo{EventID: r.Envelope.EventID, Attempt: r.Attempts + 1, Replay: r.Replayed}
}

// SetFailures sets the failures from the column handler_failures.
func (r *Row) SetFailures(column string) {
	r.Failures, r.Corrupt = nil, nil
	if column == "{}" { // nearly always
		return
	}
	if err := json.Unmarshal([]byte(column), &r.Failures); err != nil {
		r.Failures, r.Corrupt = nil, fmt.Errorf("column handler_failures of this row: %w", err)
	}
}

func idsOf(rows []Row) []uuid.UUID {
	ids := make([]uuid.UUID, len(rows))
	for i := range rows {
		ids[i] = rows[i].Envelope.EventID
	}
	return ids
}

// Keys returns the primary keys of rows and the tokens of their leases, as SQL functions take them.
func Keys(rows []Row) (ids []uuid.UUID, occurredAts []time.Time, tokens []uuid.UUID) {
	ids, occurredAts, tokens = make([]uuid.UUID, len(rows)), make([]time.Time, len(rows)), make([]uuid.UUID, len(rows))
	for i := range rows {
		ids[i], occurredAts[i], tokens[i] = rows[i].Envelope.EventID, rows[i].Envelope.OccurredAt, rows[i].Token
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
func (k *DedupKeys) Add(handler string, row *Row, place int) {
	e := &row.Envelope
	key := dedupKey{handler, e.IdempotencyKey}
	if _, duplicate := k.first[key]; duplicate {
		return
	}
	k.first[key] = place
	k.params.HandlerNames = append(k.params.HandlerNames, handler)
	k.params.IdempotencyKeys = append(k.params.IdempotencyKeys, e.IdempotencyKey)
	k.params.EventIds = append(k.params.EventIds, e.EventID)
	k.params.WorkspaceIds = append(k.params.WorkspaceIds, e.WorkspaceID.UUID)
	k.params.ContentClasses = append(k.params.ContentClasses, row.ContentClass)
}

// Runs reports, once the keys are claimed, whether a handler runs for the row at place.
func (k *DedupKeys) Runs(handler string, row *Row, place int) bool {
	first, ok := k.first[dedupKey{handler, row.Envelope.IdempotencyKey}]
	return ok && first == place
}
