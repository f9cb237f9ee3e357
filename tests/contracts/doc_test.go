// Package contracts_test keeps the event contracts from drifting unseen: snapshots of every payload's JSON Schema,
// producers' examples fed to consumers, the same refusals in Go and in SQL, and catalog pages that are current.
package contracts_test

import (
	"encoding/json"
	"flag"
	"testing"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

var update = flag.Bool("update", false, "write snapshots of new versions, examples and catalog pages")

func TestMain(m *testing.M) { pgtest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func shipped(t testing.TB) []events.Contract {
	t.Helper()
	contracts, err := app.Contracts()
	must(t, err)
	return contracts.All()
}

// consumers are the subscriptions by event type.
func consumers() map[string]events.Subscription {
	byType := make(map[string]events.Subscription)
	for _, build := range app.ConsumerBuilders() {
		s := build(app.Deps{Generation: pgtest.Generation}).WithDefaults()
		byType[s.EventType] = s
	}
	return byType
}

func pretty(t testing.TB, v any) string {
	t.Helper()
	encoded, err := json.MarshalIndent(v, "", "  ")
	must(t, err)
	return string(encoded) + "\n"
}
