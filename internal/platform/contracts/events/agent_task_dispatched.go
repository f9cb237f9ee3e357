package events

import (
	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// AgentTaskDispatchedType is the event that an agent task waits for a worker.
const AgentTaskDispatchedType = "agent.task.dispatched"

// AgentTaskDispatchedClass is the processing class of agents: slow work that can have separate processes.
const AgentTaskDispatchedClass = "agents"

// AgentTaskDispatched says that a task waits for a worker. Read the task itself for what to do: it may have changed
// since.
type AgentTaskDispatched struct {
	// AgentTaskID is platform.agent_tasks.agent_task_id, in the event's workspace.
	AgentTaskID uuid.UUID `json:"agent_task_id"`
}

// AgentTaskDispatchedContract declares the event.
func AgentTaskDispatchedContract() events.Contract {
	return events.Contract{
		Type: AgentTaskDispatchedType, Version: 1, Source: events.Platform,
		Payload: AgentTaskDispatched{AgentTaskID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000b1")},
		Class:   AgentTaskDispatchedClass, ContentClass: events.Operational,
	}
}
