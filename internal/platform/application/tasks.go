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

// Errors for what a workspace does not have.
var (
	ErrNoTask         = errors.New("there is no such agent task in this workspace")
	ErrNoConversation = errors.New("there is no such conversation in this workspace")
)

// ErrTaskExists means that a task with this id was dispatched at the same time, or in another workspace.
var ErrTaskExists = errors.New("the id is taken: read that task, or choose another id")

// Tasks stores conversations and agent tasks in one transaction.
type Tasks interface {
	AddConversation(ctx context.Context, workspace uuid.NullUUID, conversation domain.Conversation) error
	// Conversation returns a conversation, or [ErrNoConversation].
	Conversation(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Conversation, error)
	// Add stores a new task, and returns false if its id is taken.
	Add(ctx context.Context, workspace uuid.NullUUID, task *domain.AgentTask) (bool, error)
	// Find returns a task, or [ErrNoTask].
	Find(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error)
	// Lock returns a task, or [ErrNoTask], and locks it until the transaction ends.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error)
	// Save stores a task that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, task *domain.AgentTask) error
}

// publishDispatched publishes that a task waits for a worker. Each call is another event with another idempotency key.
func publishDispatched(ctx context.Context, publisher events.EventPublisher, workspace uuid.NullUUID, id uuid.UUID,
	at time.Time) error {
	return publish(ctx, publisher, workspace, at, contracts.AgentTaskDispatchedContract(),
		contracts.AgentTaskDispatched{AgentTaskID: id})
}
