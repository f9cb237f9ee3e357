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
	cards := func(tx events.Tx) worldsapp.Cards { return worldspg.NewCards(tx) }
	return &worldsapp.PublishCard{Transact: transact(u, events.Worlds, cards), Now: now}
}

// NewRecordDecision composes the use case.
func NewRecordDecision(u *publish.UnitOfWork) *platformapp.RecordDecision {
	decisions := func(tx events.Tx) platformapp.Decisions { return platformpg.NewDecisions(tx) }
	return &platformapp.RecordDecision{Transact: transact(u, events.Platform, decisions), Now: now}
}

// NewManageScans composes the use case.
func NewManageScans(u *publish.UnitOfWork) *worldsapp.ManageScans {
	scans := func(tx events.Tx) worldsapp.Scans { return worldspg.NewScans(tx) }
	return &worldsapp.ManageScans{Transact: transact(u, events.Worlds, scans), NewID: newID, Now: now}
}

// NewDetectFailureCluster composes the use case.
func NewDetectFailureCluster(u *publish.UnitOfWork) *platformapp.DetectFailureCluster {
	clusters := func(tx events.Tx) platformapp.FailureClusters { return platformpg.NewFailureClusters(tx) }
	return &platformapp.DetectFailureCluster{Transact: transact(u, events.Platform, clusters), NewID: newID, Now: now}
}

// NewManageMemories composes the use case.
func NewManageMemories(u *publish.UnitOfWork) *platformapp.ManageMemories {
	memories := func(tx events.Tx) platformapp.Memories { return platformpg.NewMemories(tx) }
	return &platformapp.ManageMemories{Transact: transact(u, events.Platform, memories), NewID: newID, Now: now}
}

// NewDecideCuration composes the use case.
func NewDecideCuration(u *publish.UnitOfWork) *platformapp.DecideCuration {
	decisions := func(tx events.Tx) platformapp.CurationDecisions { return platformpg.NewCurationDecisions(tx) }
	return &platformapp.DecideCuration{Transact: transact(u, events.Platform, decisions), NewID: newID, Now: now}
}

// NewLookUpCard composes the card lookup that worlds offers to other contexts.
func NewLookUpCard(u *publish.UnitOfWork) protocols.CardLookup {
	cards := func(tx events.Tx) worldsapp.CardReader { return worldspg.NewCards(tx) }
	return &worldsapp.LookUpCard{Transact: transact(u, events.Worlds, cards)}
}

// NewDispatchTask composes the use case.
func NewDispatchTask(u *publish.UnitOfWork, catalog platformapp.TaskCatalog) *platformapp.DispatchTask {
	return &platformapp.DispatchTask{Transact: transactTasks(u), Catalog: catalog, Now: now, NewID: newID}
}

// NewDispatchTaskIn composes the use case for a handler that dispatches a task in its transaction, so that the task
// exists if and only if the event is recorded as handled.
func NewDispatchTaskIn(tx events.Tx, publisher events.EventPublisher,
	catalog platformapp.TaskCatalog) *platformapp.DispatchTask {
	within := func(_ context.Context, _ uuid.NullUUID, work func(platformapp.Tasks, events.EventPublisher) error) error {
		return work(agentTasks(tx), publisher)
	}
	return &platformapp.DispatchTask{Transact: within, Catalog: catalog, Now: now, NewID: newID}
}

// NewRunTask composes the use case.
func NewRunTask(u *publish.UnitOfWork, executors platformapp.Executors, stepLimit time.Duration) *platformapp.RunTask {
	return &platformapp.RunTask{Transact: transactTasks(u), Executors: executors, StepLimit: stepLimit, Now: now}
}

// NewControlTask composes the use case.
func NewControlTask(u *publish.UnitOfWork) *platformapp.ControlTask {
	return &platformapp.ControlTask{Transact: transactTasks(u), Now: now}
}

func transactTasks(u *publish.UnitOfWork) platformapp.UnitOfWork[platformapp.Tasks] {
	return transact(u, events.Platform, agentTasks)
}

func agentTasks(tx events.Tx) platformapp.Tasks { return platformpg.NewAgentTasks(tx) }
