package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// UnitOfWork runs work in one transaction of the worlds context for one workspace. It passes repositories and a
// publisher for that transaction.
type UnitOfWork[R any] func(ctx context.Context, workspace uuid.NullUUID,
	work func(R, events.EventPublisher) error) error

// envelopeOf returns an event of a contract in workspace that occurred at the given time.
func envelopeOf(contract events.Contract, payload any, workspace uuid.NullUUID, at time.Time) (events.Envelope, error) {
	envelope, err := events.NewEnvelope(contract, payload)
	envelope.WorkspaceID, envelope.OccurredAt = workspace, at
	return envelope, err
}

// wrap adds the operation to the error that it returned, if any.
func wrap(err *error, operation string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(operation, args...), *err)
	}
}
