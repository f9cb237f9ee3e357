package application

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// ControlTask lets people approve and cancel tasks. The error is [domain.ErrTaskStatus] if the task's status does not
// allow the change; of two concurrent calls the second may get it. Safe for concurrent use.
type ControlTask struct {
	Transact UnitOfWork[Tasks]
	Now      func() time.Time
}

// Find returns a task.
func (c *ControlTask) Find(ctx context.Context, workspace uuid.NullUUID,
	id uuid.UUID) (found *domain.AgentTask, err error) {
	defer wrap(&err, "find agent task %s", id)
	err = c.Transact(ctx, workspace, func(tasks Tasks, _ events.EventPublisher) error {
		found, err = tasks.Lock(ctx, workspace, id)
		return err
	})
	return found, err
}

// Approve continues the task: it is queued and dispatched again.
func (c *ControlTask) Approve(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID,
	by string) (approved *domain.AgentTask, err error) {
	defer wrap(&err, "approve agent task %s", id)
	err = c.Transact(ctx, workspace, func(tasks Tasks, publisher events.EventPublisher) error {
		at := c.Now()
		approve := func(t *domain.AgentTask) error { return t.Approve(by, at) }
		if approved, err = change(ctx, tasks, workspace, id, approve); err != nil {
			return err
		}
		return publishDispatched(ctx, publisher, workspace, id, at)
	})
	return approved, err
}

// Cancel ends a task. A running task stays running until its current step ends. For a finished task the error is
// [domain.ErrTaskStatus].
func (c *ControlTask) Cancel(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID,
	by string) (cancelled *domain.AgentTask, err error) {
	defer wrap(&err, "cancel agent task %s", id)
	err = c.Transact(ctx, workspace, func(tasks Tasks, _ events.EventPublisher) error {
		cancel := func(t *domain.AgentTask) error { return t.Cancel(by, c.Now()) }
		cancelled, err = change(ctx, tasks, workspace, id, cancel)
		return err
	})
	return cancelled, err
}
