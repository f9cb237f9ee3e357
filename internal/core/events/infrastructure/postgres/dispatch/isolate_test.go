package dispatch

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/telemetry"
)

// A lock on the table stops the settling of all events, and none of them is to blame.
func TestErrorsOfAnEventCountOnlyWhileOthersAreSettled(t *testing.T) {
	t.Parallel()
	locked := &pgconn.PgError{Code: pgerrcode.LockNotAvailable}
	for name, c := range map[string]struct {
		id      uuid.UUID
		between Outcome // what becomes of another event between the errors
		want    bool
	}{
		"others are settled":     {uuid.New(), Delivered, true},
		"none is settled":        {uuid.New(), "", false},
		"others are quarantined": {uuid.New(), Quarantined, false},
		"claims":                 {uuid.Nil, "", true}, // an error at the head of the queue stops them all
	} {
		consumer, given := &Consumer{
			failures: make(map[uuid.UUID]failureCount), Telemetry: telemetry.None.Consumer("", nil),
			Log: slog.New(slog.DiscardHandler),
		}, false
		for range 2 * enough {
			given = given || consumer.tooOften(c.id, locked)
			if c.between != "" {
				consumer.Report(t.Context(), []Settlement{{Envelope: &events.Envelope{}, Outcome: c.between}})
			}
		}
		if given != c.want {
			t.Errorf("%s: given up: %t", name, given)
		}
	}
}
