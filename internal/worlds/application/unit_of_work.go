package application

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// UnitOfWork runs work in one transaction of the worlds context, for one workspace: with repositories built for it and a
// publisher bound to it.
type UnitOfWork[R any] func(ctx context.Context, workspace uuid.NullUUID, work func(R, events.EventPublisher) error) error

// envelopeOf is an event of a contract in workspace, which occurred at that time.
func envelopeOf(contract events.Contract, payload any, workspace uuid.NullUUID, at time.Time) (events.Envelope, error) {
	envelope, err := events.NewEnvelope(contract, payload)
	envelope.WorkspaceID, envelope.OccurredAt = workspace, at
	return envelope, err
}
