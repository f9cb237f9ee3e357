package app

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	platformapp "spectral/internal/platform/application"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
	platformevents "spectral/internal/platform/infrastructure/events"
	"spectral/internal/platform/infrastructure/files"
	"spectral/internal/worlds/contracts/protocols"
)

// How agent tasks are run.
const (
	// taskLease is how long a task waits when its worker dies. It is renewed every 20 s, so the database may be away for
	// 40 s. Steps are recorded one by one, so little is repeated when a live worker was taken for dead.
	taskLease = time.Minute
	// taskConcurrency is high because agents mostly wait. For more, start more processes of their class.
	taskConcurrency = 8
	// taskStepLimit bounds one step, and taskTimeout the steps between two gates.
	taskStepLimit = 2 * time.Minute
	taskTimeout   = 15 * time.Minute
	// taskRetries is more than a task's own tries, so that the task ends as failed, with its reason, before its event
	// does.
	taskRetries = domain.MaxTaskTries * (domain.MaxTaskSteps + 1)
)

// TaskCatalog returns what agents may be asked for.
func TaskCatalog() platformapp.TaskCatalog {
	return platformapp.TaskCatalog{platformapp.CardBriefingExecutor: platformapp.CheckCardBriefing}
}

// TaskExecutors returns the executors of the catalog.
func TaskExecutors(deps Deps) platformapp.Executors {
	return platformapp.Executors{
		platformapp.CardBriefingExecutor: &platformapp.CardBriefing{
			Card: briefedCard(NewLookUpCard(deps.UnitOfWork)), Briefings: files.Briefings{Dir: deps.BriefingsDir}},
	}
}

func buildAgentTaskConsumer(deps Deps) events.Subscription {
	return AgentTaskConsumer(deps, TaskExecutors(deps))
}

// AgentTaskConsumer returns the consumer of dispatched tasks, with the given executors.
func AgentTaskConsumer(deps Deps, executors platformapp.Executors) events.Subscription {
	run := NewRunTask(deps.UnitOfWork, executors, taskStepLimit)
	s := deps.consumer(platform.AgentTaskDispatchedContract(), events.Registration{
		Name: platformevents.AgentTaskRunnerName, Reads: platformevents.AgentTaskDispatchedEvent{},
		Executor: platformevents.AgentTaskRunner(run, agentTasks), Timeout: taskTimeout,
		// what a step has done is recorded, so it is not done again
		ActsOutside: "runs an agent", OnReplay: events.ReplayAllow,
		Retry: &events.RetryPolicy{MaxRetries: taskRetries, Base: 2 * time.Second, Multiplier: 2, Cap: 5 * time.Minute},
	})
	s.Mode, s.Lease, s.Concurrency = events.Leased, taskLease, taskConcurrency
	return s
}

// briefedCard connects what platform asks for to what worlds answers; neither imports the other.
func briefedCard(
	lookup protocols.CardLookup,
) func(context.Context, uuid.NullUUID, string) (platformapp.BriefedCard, error) {
	return func(ctx context.Context, workspace uuid.NullUUID, cardID string) (platformapp.BriefedCard, error) {
		card, err := lookup.LookUpCard(ctx, protocols.CardRequest{Workspace: workspace, CardID: cardID})
		if errors.Is(err, protocols.ErrCardNotFound) {
			err = platformapp.ErrNoCard
		}
		return platformapp.BriefedCard{CardID: card.CardID, Version: card.Version, Title: card.Title,
			Summary: card.Summary}, err
	}
}
