package application

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// TaskCatalog lists the executors that may be named, each with a check of its input.
type TaskCatalog map[string]func(input json.RawMessage) error

// TaskRequest asks for an agent task.
type TaskRequest struct {
	// Conversation is the task's conversation. Zero begins a new one.
	Conversation uuid.UUID
	// Trigger is the id of the event that caused the task. The new conversation is then proactive (docs/decisions/0018).
	Trigger  uuid.NullUUID
	Executor string
	Input    json.RawMessage // a JSON object, for the executor
}

// DispatchTask dispatches a task to an agent. The task, a new conversation and the event commit together or not at all.
// Safe for concurrent use.
type DispatchTask struct {
	Transact UnitOfWork[Tasks]
	Catalog  TaskCatalog
	Now      func() time.Time
	NewID    func() uuid.UUID
}

// Dispatch stores the task and publishes agent.task.dispatched.
func (d *DispatchTask) Dispatch(ctx context.Context, workspace uuid.NullUUID,
	request TaskRequest) (task *domain.AgentTask, err error) {
	defer wrap(&err, "dispatch agent task")
	if err := d.check(request); err != nil {
		return nil, err
	}
	now, conversation := d.Now(), request.Conversation
	if conversation == uuid.Nil {
		conversation = d.NewID()
	}
	if task, err = domain.NewAgentTask(d.NewID(), conversation, request.Executor, request.Input, now); err != nil {
		return nil, err
	}
	err = d.Transact(ctx, workspace, func(tasks Tasks, publisher events.EventPublisher) error {
		if request.Conversation == uuid.Nil {
			err = tasks.AddConversation(ctx, workspace, conversation, request.Trigger, now)
		} else {
			err = tasks.FindConversation(ctx, workspace, conversation)
		}
		if err != nil {
			return fmt.Errorf("conversation %s: %w", conversation, err)
		}
		if err := tasks.Add(ctx, workspace, task); err != nil {
			return err
		}
		return publishDispatched(ctx, publisher, workspace, task.ID, now)
	})
	return task, err
}

// check returns an error for an invalid request.
func (d *DispatchTask) check(request TaskRequest) error {
	if request.Conversation != uuid.Nil && request.Trigger.Valid {
		return errors.New("only a new conversation has a trigger event: omit Conversation or Trigger")
	}
	check, known := d.Catalog[request.Executor]
	if !known {
		return fmt.Errorf("there is no executor %.80q: choose among %s", request.Executor,
			strings.Join(slices.Sorted(maps.Keys(d.Catalog)), ", "))
	}
	// Check the input now: a worker could only fail the task.
	if err := events.ValidatePayload(request.Input); err != nil {
		if refusal, ok := errors.AsType[*events.Refusal](err); ok {
			err = errors.New(refusal.Problem())
		}
		return fmt.Errorf("input: %w", err)
	}
	if err := check(request.Input); err != nil {
		return fmt.Errorf("input of %s: %w", request.Executor, err)
	}
	return nil
}
