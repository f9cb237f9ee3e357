package app

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	platformapp "spectral/internal/platform/application"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsapp "spectral/internal/worlds/application"
	"spectral/internal/worlds/contracts/protocols"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// transact returns the unit of work of a context's use cases: it runs work in a transaction of the context, with its
// repositories and a publisher.
func transact[R any](u *publish.UnitOfWork, scope events.Scope,
	repositories func(events.Tx) R) func(context.Context, uuid.NullUUID, func(R, events.EventPublisher) error) error {
	return func(ctx context.Context, workspace uuid.NullUUID, work func(R, events.EventPublisher) error) error {
		return u.Do(ctx, scope, workspace, func(tx events.Tx, publisherFor events.PublisherFor) error {
			return work(repositories(tx), publisherFor())
		})
	}
}

// now returns the time to the microsecond, as the database stores it, so that stored, published and returned times
// agree.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// newID returns an id that sorts by time.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// NewPublishCard composes the use case.
func NewPublishCard(u *publish.UnitOfWork) *worldsapp.PublishCard {
	return worldsapp.NewPublishCard(transact(u, events.Worlds, func(tx events.Tx) worldsapp.Cards {
		return worldspg.NewCards(tx)
	}), now)
}

// NewRecordDecision composes the use case.
func NewRecordDecision(u *publish.UnitOfWork) *platformapp.RecordDecision {
	return platformapp.NewRecordDecision(transact(u, events.Platform, func(tx events.Tx) platformapp.Decisions {
		return platformpg.NewDecisions(tx)
	}), now)
}

// NewManageScans composes the use case.
func NewManageScans(u *publish.UnitOfWork) *worldsapp.ManageScans {
	return worldsapp.NewManageScans(transact(u, events.Worlds, func(tx events.Tx) worldsapp.Scans {
		return worldspg.NewScans(tx)
	}), newID, now)
}

// NewDetectFailureCluster composes the use case.
func NewDetectFailureCluster(u *publish.UnitOfWork,
	options ...platformapp.DetectFailureClusterOption) *platformapp.DetectFailureCluster {
	clusters := func(tx events.Tx) platformapp.FailureClusters { return platformpg.NewFailureClusters(tx) }
	return platformapp.NewDetectFailureCluster(transact(u, events.Platform, clusters), newID, now, options...)
}

// NewManageMemories composes the use case.
func NewManageMemories(u *publish.UnitOfWork) *platformapp.ManageMemories {
	return platformapp.NewManageMemories(transact(u, events.Platform, func(tx events.Tx) platformapp.Memories {
		return platformpg.NewMemories(tx)
	}), newID, now)
}

// NewDecideCuration composes the use case.
func NewDecideCuration(u *publish.UnitOfWork) *platformapp.DecideCuration {
	return platformapp.NewDecideCuration(transact(u, events.Platform, func(tx events.Tx) platformapp.CurationDecisions {
		return platformpg.NewCurationDecisions(tx)
	}), newID, now)
}

// NewLookUpCard composes the card lookup that worlds offers to other contexts.
func NewLookUpCard(u *publish.UnitOfWork) protocols.CardLookup {
	return worldsapp.NewLookUpCard(transact(u, events.Worlds, func(tx events.Tx) worldsapp.CardReader {
		return worldspg.NewCards(tx)
	}))
}

// NewDispatchTask composes the use case.
func NewDispatchTask(u *publish.UnitOfWork, catalog platformapp.TaskCatalog) *platformapp.DispatchTask {
	return platformapp.NewDispatchTask(transactTasks(u), catalog, now, newID)
}

// NewDispatchTaskIn composes the use case for a handler that dispatches a task in its transaction, so that the task
// exists if and only if the event is recorded as handled.
func NewDispatchTaskIn(tx events.Tx, publisher events.EventPublisher,
	catalog platformapp.TaskCatalog) *platformapp.DispatchTask {
	within := func(_ context.Context, _ uuid.NullUUID, work func(platformapp.Tasks, events.EventPublisher) error) error {
		return work(agentTasks(tx), publisher)
	}
	return platformapp.NewDispatchTask(within, catalog, now, newID)
}

// NewRunTask composes the use case.
func NewRunTask(u *publish.UnitOfWork, executors platformapp.Executors, stepLimit time.Duration) *platformapp.RunTask {
	return platformapp.NewRunTask(transactTasks(u), executors, stepLimit, now)
}

// NewControlTask composes the use case.
func NewControlTask(u *publish.UnitOfWork) *platformapp.ControlTask {
	return platformapp.NewControlTask(transactTasks(u), now)
}

func transactTasks(u *publish.UnitOfWork) platformapp.UnitOfWork[platformapp.Tasks] {
	return transact(u, events.Platform, agentTasks)
}

func agentTasks(tx events.Tx) platformapp.Tasks { return platformpg.NewAgentTasks(tx) }
