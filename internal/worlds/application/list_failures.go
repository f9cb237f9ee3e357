package application

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// ListFailures tells what worlds published and nobody got: cards that are in no system card, scans that are not indexed.
// Safe for concurrent use.
type ListFailures struct {
	transact UnitOfWork[events.FailureReader]
}

// NewListFailures composes the use case.
func NewListFailures(transact UnitOfWork[events.FailureReader]) *ListFailures {
	return &ListFailures{transact: transact}
}

// failuresPage is how many failures are read at once.
const failuresPage = 100

// List returns the failed events of a workspace, of those types or of any if none are given, the latest first, at most
// limit. Discarded ones are left out: that nobody gets them is meant.
func (l *ListFailures) List(ctx context.Context, workspace uuid.NullUUID, limit int, eventTypes ...string) ([]events.Failure, error) {
	if limit < 1 {
		return nil, fmt.Errorf("list failed events of worlds: limit %d: must be at least 1", limit)
	}
	var failures []events.Failure
	err := l.transact(ctx, workspace, func(reader events.FailureReader, _ events.EventPublisher) error {
		var last events.Failure
		for {
			page, err := reader.Failures(ctx, failuresPage, last)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, failure := range page {
				if !failure.DiscardedAt.IsZero() || len(eventTypes) > 0 && !slices.Contains(eventTypes, failure.Envelope.EventType) {
					continue
				}
				if failures = append(failures, failure); len(failures) == limit {
					return nil
				}
			}
			last = page[len(page)-1]
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list failed events of worlds: %w", err)
	}
	return failures, nil
}
