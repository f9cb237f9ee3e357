package events

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/application"
)

// AgentTaskRunnerName is part of the runner's dedup key. It must never change.
const AgentTaskRunnerName = "platform.agent_task_runner"

// AgentTaskDispatchedEvent is what platform reads of agent.task.dispatched.
type AgentTaskDispatchedEvent struct {
	AgentTaskID uuid.UUID `json:"agent_task_id"`
}

// AgentTaskRunner runs dispatched tasks outside any transaction. The result of a run is written in the transaction that
// settles its event. The event of a failed task is delivered. An error means that the run must be retried, or that the
// event names no task.
func AgentTaskRunner(run *application.RunTask, tasks func(events.Tx) application.Tasks) events.Executor {
	return events.ExecutorFunc(func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		dispatched, err := events.Decode[AgentTaskDispatchedEvent](e)
		if err != nil {
			return nil, err
		}
		if dispatched.AgentTaskID == uuid.Nil {
			return nil, &events.PayloadError{EventType: e.EventType, Err: errors.New("agent_task_id is missing")}
		}
		conclude, err := run.Run(ctx, e.WorkspaceID, dispatched.AgentTaskID, e.EventID)
		if errors.Is(err, application.ErrNoTask) { // not published together with its task
			return nil, events.Terminal(fmt.Errorf("agent task %s: %w: publish the event with p_workspace_id of its task",
				dispatched.AgentTaskID, err))
		}
		if err != nil || conclude == nil {
			return nil, err
		}
		return func(ctx context.Context, tx events.Tx) error { return conclude(ctx, tasks(tx)) }, nil
	})
}
