package application

import (
	"context"
	"encoding/json"
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

// Tasks stores conversations and agent tasks in one transaction.
type Tasks interface {
	// AddConversation begins a conversation. Trigger is the event that caused it, if it is proactive.
	AddConversation(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, trigger uuid.NullUUID, at time.Time) error
	// FindConversation returns [ErrNoConversation] if there is none.
	FindConversation(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) error
	// Add stores a new task.
	Add(ctx context.Context, workspace uuid.NullUUID, task *domain.AgentTask) error
	// Lock returns a task, or [ErrNoTask], and locks it until the transaction ends.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error)
	// Save stores a task that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, task *domain.AgentTask) error
}

// change locks a task, changes it and saves it.
func change(ctx context.Context, tasks Tasks, workspace uuid.NullUUID, id uuid.UUID,
	do func(*domain.AgentTask) error) (*domain.AgentTask, error) {
	task, err := tasks.Lock(ctx, workspace, id)
	if err == nil {
		err = do(task)
	}
	if err == nil {
		err = tasks.Save(ctx, workspace, task)
	}
	return task, err
}

// publishDispatched publishes that a task waits for a worker. Each call is another event with another idempotency key.
func publishDispatched(ctx context.Context, publisher events.EventPublisher, workspace uuid.NullUUID, id uuid.UUID,
	at time.Time) error {
	return publish(ctx, publisher, workspace, at, contracts.AgentTaskDispatchedContract(),
		contracts.AgentTaskDispatched{AgentTaskID: id})
}

// Executor does the work of agent tasks, one step at a time.
//
// Advance does the step after the finished ones and returns its outcome. It keeps nothing in memory between calls,
// because the next call may be in another worker. It may run more than once for a step, if a worker dies or is stopped
// before the step is recorded. So its external effects happen at least once; [Work.Key] identifies them.
//
// It returns when ctx ends. An error is retried, unless it is terminal ([events.Terminal]): then the task fails, and
// the error is the reason for people. Safe for concurrent use.
type Executor interface {
	Advance(ctx context.Context, work Work) (Advance, error)
}

// Executors are the executors of a build, by name.
type Executors map[string]Executor

// Work is a task as an executor sees it.
type Work struct {
	Task, Conversation uuid.UUID
	Workspace          uuid.NullUUID
	Input              json.RawMessage
	// Run is the number of this run. A later run replaces an earlier one, so a service may refuse a lower number than
	// one it has seen.
	Run int64

	task *domain.AgentTask
}

// Result returns the result of a step, and false if the step is not done.
func (w Work) Result(step string) (json.RawMessage, bool) { return w.task.StepResult(step) }

// Approved reports whether a person has approved a gate.
func (w Work) Approved(gate string) bool {
	a := w.task.Approval
	return a != nil && a.Gate == gate && a.ApprovedBy != ""
}

// Key returns an idempotency key for a step's effect. It is the same at each repetition.
func (w Work) Key(step string) string { return w.Task.String() + "/" + step }

// Advance is the outcome of a step: one of [StepDone], [NeedsApproval] and [TaskDone].
type Advance struct {
	step, gate, question string
	result               json.RawMessage
}

// StepDone returns the outcome of a finished step. Its result, a JSON object, is recorded.
func StepDone(step string, result json.RawMessage) Advance {
	return Advance{step: step, result: result}
}

// NeedsApproval returns the outcome that a person must approve a gate, with the question. The run ends, and another
// begins after the decision.
func NeedsApproval(gate, question string) Advance { return Advance{gate: gate, question: question} }

// TaskDone returns the outcome of a finished task, with its result, a JSON object.
func TaskDone(result json.RawMessage) Advance { return Advance{result: result} }
