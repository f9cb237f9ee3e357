package pgtest

import (
	"time"

	"spectral/internal/app"
	"spectral/internal/core/events"
)

// Contracts returns the contracts of the product and more. Deadlines of deprecated ones are in the future, so that
// tests can publish them.
func Contracts(more ...events.Contract) (*events.Contracts, error) {
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
	return events.NewContracts(append(all, more...)...)
}
