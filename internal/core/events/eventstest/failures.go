package eventstest

import (
	"context"
	"fmt"

	"spectral/internal/core/events"
)

// Failures are dead letters, the latest first, as an [events.FailureReader] without a database.
type Failures []events.Failure

var _ events.FailureReader = Failures{}

// Failures implements [events.FailureReader].
func (f Failures) Failures(ctx context.Context, limit int, after events.Failure) ([]events.Failure, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read failures: %w", err)
	}
	if limit < 1 || limit > events.MaxFailures {
		return nil, &events.Refusal{Code: events.CodeArgument, Field: "limit", Reason: fmt.Sprintf("%d must be from 1 to %d", limit, events.MaxFailures)}
	}
	begin := 0
	for i, failure := range f {
		if failure.Envelope.EventID == after.Envelope.EventID && failure.Envelope.OccurredAt.Equal(after.Envelope.OccurredAt) {
			begin = i + 1
		}
	}
	return append([]events.Failure{}, f[begin:min(begin+limit, len(f))]...), nil
}
