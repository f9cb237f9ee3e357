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
	// ID makes the request idempotent. Zero means a new id.
	ID uuid.UUID
	// Conversation is the task's conversation. Zero begins a new one.
	Conversation uuid.UUID
	// Proactive means that platform begins the conversation without a request.
	Proactive bool
	// Trigger is the id of the event that caused the task. The conversation is then proactive.
	Trigger  uuid.NullUUID
	Executor string
	Input    json.RawMessage // a JSON object, for the executor
	// Retention is how long the task is kept; zero means [domain.DefaultTaskRetention].
	Retention time.Duration
}

// DispatchTask dispatches a task to an agent. The task, a new conversation and the event commit together or not at all.
// Safe for concurrent use.
type DispatchTask struct {
	Transact UnitOfWork[Tasks]
	Catalog  TaskCatalog
	Now      func() time.Time
	NewID    func() uuid.UUID
}

// Dispatch stores the task and publishes agent.task.dispatched. For an invalid request the error is a
// [*domain.InvalidTaskError]. If the request's ID was dispatched before, Dispatch returns that task and does nothing
// else.
func (d *DispatchTask) Dispatch(ctx context.Context, workspace uuid.NullUUID,
	request TaskRequest) (dispatched domain.AgentTask, err error) {
	defer wrap(&err, "dispatch agent task")
	if err := d.check(request); err != nil {
		return domain.AgentTask{}, &domain.InvalidTaskError{Err: err}
	}
	now := d.Now()
	conversation := domain.Conversation{ID: request.Conversation, Kind: domain.Reactive, TriggerEvent: request.Trigger,
		CreatedAt: now}
	if request.Proactive || request.Trigger.Valid {
		conversation.Kind = domain.Proactive
	}
	begins := conversation.ID == uuid.Nil
	id := request.ID
	for _, missing := range []*uuid.UUID{&id, &conversation.ID} {
		if *missing == uuid.Nil {
			*missing = d.NewID()
		}
	}
	task, err := domain.NewAgentTask(id, conversation.ID, request.Executor, request.Input, request.Retention, now)
	if err != nil {
		return domain.AgentTask{}, err
	}
	err = d.Transact(ctx, workspace, func(tasks Tasks, publisher events.EventPublisher) error {
		if request.ID != uuid.Nil {
			known, err := tasks.Find(ctx, workspace, request.ID)
			if err == nil {
				dispatched = *known
				return nil
			}
			if !errors.Is(err, ErrNoTask) {
				return err
			}
		}
		if begins {
			if err := tasks.AddConversation(ctx, workspace, conversation); err != nil {
				return err
			}
		} else if _, err := tasks.Conversation(ctx, workspace, conversation.ID); err != nil {
			return fmt.Errorf("conversation %s: %w", conversation.ID, err)
		}
		added, err := tasks.Add(ctx, workspace, task)
		if err != nil {
			return err
		}
		if !added {
			return fmt.Errorf("%s: %w", id, ErrTaskExists)
		}
		dispatched = *task
		return publishDispatched(ctx, publisher, workspace, id, now)
	})
	return dispatched, err
}

// check returns an error for an invalid request.
func (d *DispatchTask) check(request TaskRequest) error {
	if request.Conversation != uuid.Nil && (request.Proactive || request.Trigger.Valid) {
		return errors.New("only a new conversation is proactive or has a trigger event: omit Conversation, or the others")
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
