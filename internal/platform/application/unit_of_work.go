package application

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// UnitOfWork runs work in one transaction of the platform context, for one workspace: with repositories built for it and a
// publisher bound to it.
type UnitOfWork[R any] func(ctx context.Context, workspace uuid.NullUUID, work func(R, events.EventPublisher) error) error
