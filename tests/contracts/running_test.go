package contracts_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/pgtest"
)

// TestRunningConsumersTakeLaterVersions publishes every example in its own version and in a higher one with fields that
// are in no contract, and runs all consumers of the product. They may refuse what it says, but they can decode it.
func TestRunningConsumersTakeLaterVersions(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	url := pgtest.New(t)
	db := pgtest.Pool(t, url)
	pgtest.Workers(t, url)
	all := pgtest.Contracts(t)
	for _, c := range slices.Clone(all) {
		if c.Version == versionsOf(all, c.Type)[len(versionsOf(all, c.Type))-1] {
			c.Version++
			all = append(all, c)
		}
	}
	contracts, err := events.NewContracts(all...)
	must(t, err)
	must(t, publish.RegisterContracts(ctx, db, pgtest.Generation, contracts))
	for _, c := range all {
		encoded, err := json.Marshal(c.Payload)
		must(t, err)
		var example any
		must(t, json.Unmarshal(encoded, &example))
		_, err = db.Exec(ctx, "select core.outbox_publish($1, $2, $3, p_event_version => $4, p_workspace_id => $5)",
			c.Type, c.Source, extended(example), c.Version, uuid.New())
		must(t, err)
	}
	outcomes := eventstest.Drain(t, db)
	if len(outcomes) < len(all) {
		t.Fatalf("%d outcomes, want at least the %d published events", len(outcomes), len(all))
	}
	handled := 0
	for _, o := range outcomes {
		handled += len(o.HandledBy)
		if strings.Contains(o.LastError, "PayloadError") {
			t.Errorf("%s cannot be read: %s", o.Envelope.EventType, o.LastError)
		}
	}
	if handled < len(consumers()) {
		t.Fatalf("only %d handlers have handled anything: %v", handled, outcomes)
	}
}
