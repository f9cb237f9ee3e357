package events

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/application"
)

// AgentTaskRunnerName is half of the runner's dedup key: it never changes.
const AgentTaskRunnerName = "platform.agent_task_runner"

// AgentTaskDispatchedEvent is what platform reads of agent.task.dispatched.
type AgentTaskDispatchedEvent struct {
	AgentTaskID uuid.UUID `json:"agent_task_id"`
}

// AgentTaskRunner does the work of dispatched tasks, outside any transaction; what a run comes to is written as its event
// is settled. A task that failed as such is an outcome, and its event is delivered: an error is only what is to be tried
// again, or an event that no task is known for.
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
		if errors.Is(err, application.ErrNoTask) { // the event was published with its task, or by hand
			return nil, events.Terminal(fmt.Errorf("agent task %s, %s: %w: publish the event with p_workspace_id of its task",
				dispatched.AgentTaskID, workspaceText(e.WorkspaceID), err))
		}
		if err != nil || conclude == nil {
			return nil, err
		}
		return func(ctx context.Context, tx events.Tx) error { return conclude(ctx, tasks(tx)) }, nil
	})
}

func workspaceText(workspace uuid.NullUUID) string {
	if !workspace.Valid {
		return "no workspace"
	}
	return "workspace " + workspace.UUID.String()
}
