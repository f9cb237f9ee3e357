package pgtest

import (
	"testing"
	"time"

	"spectral/internal/app"
	"spectral/internal/core/events"
)

// Contracts returns the product's contracts. The deadlines of deprecated ones are in the future, so that tests can
// publish them.
func Contracts(t testing.TB) []events.Contract {
	t.Helper()
	all, err := LastingContracts()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// LastingContracts is Contracts for the fixtures of MainWith, which have no test.
func LastingContracts() ([]events.Contract, error) {
	shipped, err := app.Contracts()
	if err != nil {
		return nil, err
	}
	all := shipped.All()
	for i, c := range all {
		if c.Deprecation != nil {
			all[i].Deprecation = &events.Deprecation{Deadline: time.Now().AddDate(1, 0, 0), Successor: c.Deprecation.Successor}
		}
	}
	return all, nil
}
