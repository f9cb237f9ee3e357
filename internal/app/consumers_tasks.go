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
	// taskLease is how long a task waits when its worker dies. Steps are recorded one by one, so little is repeated after
	// a false alarm; and it is renewed every 20 s, so that the database may be away for some 40 s.
	taskLease = time.Minute
	// taskConcurrency is for agents, who mostly wait for others; more of them is more processes of their class.
	taskConcurrency = 8
	// taskStepLimit bounds one step, and taskTimeout all the steps between two gates.
	taskStepLimit = 2 * time.Minute
	taskTimeout   = 15 * time.Minute
	// taskRetries lets a task use up its own tries, which each step has, before its event runs out of retries: the task
	// then ends as failed, and says why.
	taskRetries = domain.MaxTaskTries * (domain.MaxTaskSteps + 1)
)

// TaskCatalog is what agents may be asked for.
func TaskCatalog() platformapp.TaskCatalog {
	return platformapp.TaskCatalog{platformapp.CardBriefingExecutor: platformapp.CheckCardBriefing}
}

// TaskExecutors are those that do it.
func TaskExecutors(parts Parts) platformapp.Executors {
	return platformapp.Executors{
		platformapp.CardBriefingExecutor: platformapp.NewCardBriefing(
			cardSource{NewLookUpCard(parts.UnitOfWork)}, files.NewBriefings(parts.BriefingsDir)),
	}
}

func buildAgentTaskConsumer(parts Parts) events.Subscription {
	return AgentTaskConsumer(parts, TaskExecutors(parts))
}

// AgentTaskConsumer is the consumer of dispatched tasks, over the given executors.
func AgentTaskConsumer(parts Parts, executors platformapp.Executors) events.Subscription {
	run := NewRunTask(parts.UnitOfWork, executors, taskStepLimit)
	s := parts.consumer(platform.AgentTaskDispatchedContract(), events.Registration{
		Name: platformevents.AgentTaskRunnerName, Reads: platformevents.AgentTaskDispatchedEvent{},
		Executor: platformevents.AgentTaskRunner(run, agentTasks), Timeout: taskTimeout,
		Retry: &events.RetryPolicy{MaxRetries: taskRetries, Base: 2 * time.Second, Multiplier: 2, Cap: 5 * time.Minute},
	})
	s.Mode, s.Lease, s.Concurrency = events.Leased, taskLease, taskConcurrency
	return s
}

// cardSource is the bridge between what platform asks and what worlds answers: neither knows the other.
type cardSource struct{ lookup protocols.CardLookup }

// Card implements [platformapp.CardSource].
func (c cardSource) Card(ctx context.Context, workspace uuid.NullUUID, cardID string) (platformapp.BriefedCard, error) {
	card, err := c.lookup.LookUpCard(ctx, protocols.CardRequest{Workspace: workspace, CardID: cardID})
	if errors.Is(err, protocols.ErrCardNotFound) {
		return platformapp.BriefedCard{}, platformapp.ErrNoCard
	}
	if err != nil {
		return platformapp.BriefedCard{}, err
	}
	return platformapp.BriefedCard{
		CardID: card.CardID, Version: card.Version, Title: card.Title, Summary: card.Summary, Attributes: card.Attributes,
	}, nil
}
