package application

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// ControlTask lets people approve, reject, cancel, retry and redispatch tasks. The error is a [*domain.TransitionError]
// if the task's status does not allow the change; of two concurrent calls the second may get it. Safe for concurrent
// use.
type ControlTask struct {
	Transact UnitOfWork[Tasks]
	Now      func() time.Time
}

// Find returns a task.
func (c *ControlTask) Find(ctx context.Context, workspace uuid.NullUUID,
	id uuid.UUID) (found domain.AgentTask, err error) {
	defer wrap(&err, "find agent task %s", id)
	err = c.Transact(ctx, workspace, func(tasks Tasks, _ events.EventPublisher) error {
		task, err := tasks.Find(ctx, workspace, id)
		if err == nil {
			found = *task
		}
		return err
	})
	return found, err
}

// Approve continues the task: it is queued and dispatched again.
func (c *ControlTask) Approve(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID,
	by, comment string) (domain.AgentTask, error) {
	return c.change(ctx, "approve", workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Approve(by, comment, now)
	})
}

// Reject ends the task as cancelled.
func (c *ControlTask) Reject(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID,
	by, comment string) (domain.AgentTask, error) {
	return c.change(ctx, "reject", workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Reject(by, comment, now)
	})
}

// Cancel ends a task. A running task stays running until its current step ends. For a finished task the error is a
// [*domain.TransitionError].
func (c *ControlTask) Cancel(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID,
	by string) (domain.AgentTask, error) {
	return c.change(ctx, "cancel", workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Cancel(by, now)
	})
}

// Retry continues a failed task after its finished steps.
func (c *ControlTask) Retry(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.AgentTask, error) {
	return c.change(ctx, "retry", workspace, id, (*domain.AgentTask).Retry)
}

// Redispatch dispatches a queued or running task again, after its agent.task.dispatched failed or was discarded. A
// current run can write nothing more, and its step is repeated. Do not call it while the task's event is alive: one of
// the two events is then delivered without effect, and it may be the new one.
func (c *ControlTask) Redispatch(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.AgentTask, error) {
	return c.change(ctx, "redispatch", workspace, id, (*domain.AgentTask).Redispatch)
}

// change locks a task, changes it, and dispatches it if it then waits for a worker. What names the change in an error.
func (c *ControlTask) change(ctx context.Context, what string, workspace uuid.NullUUID, id uuid.UUID,
	do func(*domain.AgentTask, time.Time) error) (changed domain.AgentTask, err error) {
	defer wrap(&err, "%s agent task %s", what, id)
	err = c.Transact(ctx, workspace, func(tasks Tasks, publisher events.EventPublisher) error {
		task, err := tasks.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		at := c.Now()
		if err := do(task, at); err != nil {
			return err
		}
		if err := tasks.Save(ctx, workspace, task); err != nil {
			return err
		}
		changed = *task
		if task.Status != domain.TaskQueued {
			return nil
		}
		return publishDispatched(ctx, publisher, workspace, id, at)
	})
	return changed, err
}
