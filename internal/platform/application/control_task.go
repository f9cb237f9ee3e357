package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// ReviewTask decides for a person on a task that awaits approval. Of two that decide at the same time the second is
// refused with a [*domain.TransitionError]. Safe for concurrent use.
type ReviewTask struct {
	transact TasksUnitOfWork
	now      func() time.Time
}

// NewReviewTask composes the use case.
func NewReviewTask(transact TasksUnitOfWork, now func() time.Time) *ReviewTask {
	return &ReviewTask{transact: transact, now: now}
}

// Approve lets the task go on: it is queued, and dispatched again.
func (r *ReviewTask) Approve(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, by, comment string) (domain.AgentTask, error) {
	return named("approve", id)(change(ctx, r.transact, r.now, workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Approve(by, comment, now)
	}))
}

// Reject ends the task as cancelled.
func (r *ReviewTask) Reject(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, by, comment string) (domain.AgentTask, error) {
	return named("reject", id)(change(ctx, r.transact, r.now, workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Reject(by, comment, now)
	}))
}

// ControlTask cancels tasks and takes them up again. Safe for concurrent use.
type ControlTask struct {
	transact TasksUnitOfWork
	now      func() time.Time
}

// NewControlTask composes the use case.
func NewControlTask(transact TasksUnitOfWork, now func() time.Time) *ControlTask {
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
	return named("find", id)(found, err)
}

// Cancel ends a task that nobody is at work on; a running one ends where its executor can stop, and stays running until
// then. What is finished is refused with a [*domain.TransitionError].
func (c *ControlTask) Cancel(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, by string) (domain.AgentTask, error) {
	return named("cancel", id)(change(ctx, c.transact, c.now, workspace, id, func(t *domain.AgentTask, now time.Time) error {
		return t.Cancel(by, now)
	}))
}

// Retry takes a failed task up again, after the steps that it has done.
func (c *ControlTask) Retry(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.AgentTask, error) {
	return named("retry", id)(change(ctx, c.transact, c.now, workspace, id, (*domain.AgentTask).Retry))
}

// Redispatch dispatches a queued or running task again, for an operator whose agent.task.dispatched has failed or was
// discarded while the task was not done. It does no harm where that is not so: a run that is still at work may write no more,
// and the step that it was at is repeated.
func (c *ControlTask) Redispatch(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.AgentTask, error) {
	return named("redispatch", id)(change(ctx, c.transact, c.now, workspace, id, (*domain.AgentTask).Redispatch))
}

// named wraps the error of a use case.
func named(what string, id uuid.UUID) func(domain.AgentTask, error) (domain.AgentTask, error) {
	return func(task domain.AgentTask, err error) (domain.AgentTask, error) {
		if err != nil {
			return domain.AgentTask{}, fmt.Errorf("%s agent task %s: %w", what, id, err)
		}
		return task, nil
	}
}
