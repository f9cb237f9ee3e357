package app

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	platformapp "spectral/internal/platform/application"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsapp "spectral/internal/worlds/application"
	"spectral/internal/worlds/contracts/protocols"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// transact is the unit of work that a context's use cases take: a transaction of that context, with
// repositories built for it and a publisher bound to it.
func transact[R any](u *postgres.UnitOfWork, scope events.Scope, repositories func(events.Tx) R) func(context.Context, uuid.NullUUID, func(R, events.EventPublisher) error) error {
	return func(ctx context.Context, workspace uuid.NullUUID, work func(R, events.EventPublisher) error) error {
		return u.Do(ctx, scope, workspace, func(tx events.Tx, publisherFor events.PublisherFor) error {
			return work(repositories(tx), publisherFor())
		})
	}
}

// NewPublishCard composes the use case.
func NewPublishCard(u *postgres.UnitOfWork) *worldsapp.PublishCard {
	return worldsapp.NewPublishCard(transact(u, events.Worlds, func(tx events.Tx) worldsapp.Cards { return worldspg.NewCards(tx) }), time.Now)
}

// NewLookUpCard composes what worlds answers other contexts with.
func NewLookUpCard(u *postgres.UnitOfWork) protocols.CardLookup {
	return worldsapp.NewLookUpCard(transact(u, events.Worlds, func(tx events.Tx) worldsapp.CardReader { return worldspg.NewCardReader(tx) }))
}

// NewDispatchTask composes the use case.
func NewDispatchTask(u *postgres.UnitOfWork, catalog platformapp.TaskCatalog) *platformapp.DispatchTask {
	return platformapp.NewDispatchTask(transactTasks(u), catalog, time.Now, uuid.NewV7)
}

// NewDispatchTaskIn composes the use case for a handler that dispatches a task in its own transaction: the task is there
// exactly when the handler's event is recorded as handled.
func NewDispatchTaskIn(tx events.Tx, publisher events.EventPublisher, catalog platformapp.TaskCatalog) *platformapp.DispatchTask {
	within := func(_ context.Context, _ uuid.NullUUID, work func(platformapp.Tasks, events.EventPublisher) error) error {
		return work(agentTasks(tx), publisher)
	}
	return platformapp.NewDispatchTask(within, catalog, time.Now, uuid.NewV7)
}

// NewRunTask composes the use case.
func NewRunTask(u *postgres.UnitOfWork, executors platformapp.Executors, stepLimit time.Duration) *platformapp.RunTask {
	return platformapp.NewRunTask(transactTasks(u), executors, stepLimit, time.Now)
}

// NewReviewTask composes the use case.
func NewReviewTask(u *postgres.UnitOfWork) *platformapp.ReviewTask {
	return platformapp.NewReviewTask(transactTasks(u), time.Now)
}

// NewControlTask composes the use case.
func NewControlTask(u *postgres.UnitOfWork) *platformapp.ControlTask {
	return platformapp.NewControlTask(transactTasks(u), time.Now)
}

func transactTasks(u *postgres.UnitOfWork) platformapp.TasksUnitOfWork {
	return transact(u, events.Platform, agentTasks)
}

func agentTasks(tx events.Tx) platformapp.Tasks { return platformpg.NewAgentTasks(tx) }
