package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// UnitOfWork runs work in one transaction of the platform context for one workspace. It passes repositories and a
// publisher for that transaction.
type UnitOfWork[R any] func(ctx context.Context, workspace uuid.NullUUID,
	work func(R, events.EventPublisher) error) error

// publish publishes an event of a contract in workspace that occurred at the given time.
func publish(ctx context.Context, publisher events.EventPublisher, workspace uuid.NullUUID, at time.Time,
	contract events.Contract, payload any) error {
	envelope, err := events.NewEnvelope(contract, payload)
	if err != nil {
		return err
	}
	envelope.WorkspaceID, envelope.OccurredAt = workspace, at
	return publisher.Publish(ctx, envelope)
}

// wrap adds the operation to the error that it returned, if any.
func wrap(err *error, operation string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(operation, args...), *err)
	}
}
