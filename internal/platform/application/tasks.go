package application

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
)

// What is not there, in the workspace that was asked.
var (
	ErrNoTask         = errors.New("there is no such agent task in this workspace")
	ErrNoConversation = errors.New("there is no such conversation in this workspace")
)

// ErrTaskExists says that a task of this id was dispatched at the same moment, or in another workspace.
var ErrTaskExists = errors.New("there is an agent task of this id: look again, or choose another")

// Tasks stores conversations and agent tasks in one transaction.
type Tasks interface {
	AddConversation(ctx context.Context, workspace uuid.NullUUID, conversation domain.Conversation) error
	// Conversation is [ErrNoConversation] if there is none.
	Conversation(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Conversation, error)
	// Add stores a new task; false if its id is taken.
	Add(ctx context.Context, workspace uuid.NullUUID, task *domain.AgentTask) (bool, error)
	// Find is [ErrNoTask] if there is none.
	Find(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error)
	// Lock is Find for who will change the task: nobody else does until the transaction ends.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error)
	// Save stores a task that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, task *domain.AgentTask) error
}

// publishDispatched says that a task awaits a worker. Each time is an event of its own, with its own idempotency key.
func publishDispatched(ctx context.Context, publisher events.EventPublisher, workspace uuid.NullUUID, id uuid.UUID, at time.Time) error {
	return publish(ctx, publisher, workspace, at, contracts.AgentTaskDispatchedContract(), contracts.AgentTaskDispatched{AgentTaskID: id})
}
