package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// ControlTask does what people do with a dispatched task: approve or reject it, cancel it, take it up again. What its status
// does not allow is a [*domain.TransitionError], which of two at the same time the second hears. Safe for concurrent use.
type ControlTask struct {
	transact UnitOfWork[Tasks]
	now      func() time.Time
}

// NewControlTask composes the use case.
func NewControlTask(transact UnitOfWork[Tasks], now func() time.Time) *ControlTask {
	return &ControlTask{transact: transact, now: now}
}

// Find returns the task as it stands.
func (c *ControlTask) Find(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (found domain.AgentTask, err error) {
	err = c.transact(ctx, workspace, func(tasks Tasks, _ events.EventPublisher) error {
		task, err := tasks.Find(ctx, workspace, id)
		if err == nil {
			found = *task
		}
		return err
	})
	if err != nil {
		return domain.AgentTask{}, fmt.Errorf("find agent task %s: %w", id, err)
	}
	return found, nil
}

// Approve lets the task go on: it is queued, and dispatched again.
func (c *ControlTask) Approve(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, by, comment string) (domain.AgentTask, error) {
	return c.change(ctx, "approve", workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Approve(by, comment, now)
	})
}

// Reject ends the task as cancelled.
func (c *ControlTask) Reject(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, by, comment string) (domain.AgentTask, error) {
	return c.change(ctx, "reject", workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Reject(by, comment, now)
	})
}

// Cancel ends a task that nobody is at work on; a running one ends where its executor can stop, and stays running until
// then. What is finished is refused with a [*domain.TransitionError].
func (c *ControlTask) Cancel(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, by string) (domain.AgentTask, error) {
	return c.change(ctx, "cancel", workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Cancel(by, now)
	})
}

// Retry takes a failed task up again, after the steps that it has done.
func (c *ControlTask) Retry(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.AgentTask, error) {
	return c.change(ctx, "retry", workspace, id, (*domain.AgentTask).Retry)
}

// Redispatch dispatches a queued or running task again, for an operator whose agent.task.dispatched has failed or was
// discarded while the task was not done. A run that is still at work may write no more, and the step that it was at is repeated. It is
// not for a task whose event lives: of the two, one finds the task at work and is delivered, and it may be the new one.
func (c *ControlTask) Redispatch(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.AgentTask, error) {
	return c.change(ctx, "redispatch", workspace, id, (*domain.AgentTask).Redispatch)
}

// change locks a task, changes it, and dispatches it if it awaits a worker then. What names the change in an error.
func (c *ControlTask) change(ctx context.Context, what string, workspace uuid.NullUUID, id uuid.UUID, do func(*domain.AgentTask, time.Time) error) (domain.AgentTask, error) {
	var changed domain.AgentTask
	err := c.transact(ctx, workspace, func(tasks Tasks, publisher events.EventPublisher) error {
		task, err := tasks.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		at := c.now()
		if err := do(task, at); err != nil {
			return err
		}
		if err := tasks.Save(ctx, workspace, task); err != nil {
			return err
		}
		changed = *task
		if !task.AwaitsWorker() {
			return nil
		}
		return publishDispatched(ctx, publisher, workspace, id, at)
	})
	if err != nil {
		return domain.AgentTask{}, fmt.Errorf("%s agent task %s: %w", what, id, err)
	}
	return changed, nil
}
