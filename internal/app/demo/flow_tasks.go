package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"

	"spectral/internal/app"
	platformapp "spectral/internal/platform/application"
	platform "spectral/internal/platform/domain"
)

// taskFlow runs two agent tasks: a person approves one and cancels the other.
func taskFlow() Flow {
	return Flow{
		Name: "tasks", About: "an agent of platform reads a card from worlds, and delivers a briefing when a person approves",
		Run: func(ctx context.Context, s *Stage) error {
			card, err := harbourCard()
			if err != nil {
				return err
			}
			if _, err := app.NewPublishCard(s.UnitOfWork).Publish(ctx, s.Workspace, card); err != nil {
				return err
			}
			delivered, err := s.awaitApproval(ctx)
			if err != nil {
				return err
			}
			control := app.NewControlTask(s.UnitOfWork)
			if _, err := control.Approve(ctx, s.Workspace, delivered, "a person", "go ahead"); err != nil {
				return err
			}
			s.Say("a person approved: the task was queued and dispatched again, in one transaction")
			if err := s.showBriefing(ctx, delivered); err != nil {
				return err
			}
			cancelled, err := s.awaitApproval(ctx)
			if err != nil {
				return err
			}
			task, err := control.Cancel(ctx, s.Workspace, cancelled, "a person")
			if err != nil {
				return err
			}
			s.Say("a person cancelled the second task: it is %s, and nothing was delivered", task.Status)
			return s.Settled(ctx, 4) // the card, and three dispatches
		},
	}
}

// awaitApproval dispatches a briefing and waits until it asks a person for approval.
func (s *Stage) awaitApproval(ctx context.Context) (uuid.UUID, error) {
	request := platformapp.TaskRequest{
		Executor: platformapp.CardBriefingExecutor, Input: json.RawMessage(`{"card_id": "harbour"}`),
	}
	dispatched, err := app.NewDispatchTask(s.UnitOfWork, app.TaskCatalog()).Dispatch(ctx, s.Workspace, request)
	if err != nil {
		return uuid.Nil, err
	}
	s.Say("platform stored task %s and dispatched it, in one transaction", dispatched.ID)
	task, err := s.task(ctx, dispatched.ID, platform.TaskAwaitingApproval)
	if err != nil {
		return uuid.Nil, err
	}
	var steps []string
	for _, step := range task.Steps {
		steps = append(steps, step.Name)
	}
	s.Say("the agent did %s, and asks: %s", strings.Join(steps, ", "), task.Approval.Question)
	return task.ID, nil
}

// showBriefing waits until a task has succeeded, and shows its briefing.
func (s *Stage) showBriefing(ctx context.Context, id uuid.UUID) error {
	task, err := s.task(ctx, id, platform.TaskSucceeded)
	if err != nil {
		return err
	}
	var result struct {
		DeliveredTo string `json:"delivered_to"`
	}
	if err := json.Unmarshal(task.Result, &result); err != nil {
		return err
	}
	briefing, err := os.ReadFile(result.DeliveredTo)
	if err != nil {
		return err
	}
	s.Say("the task has succeeded with %s", task.Result)
	for line := range strings.Lines(strings.TrimSpace(string(briefing))) {
		s.Say("| %s", strings.TrimSuffix(line, "\n"))
	}
	return nil
}

// task waits until a task has a status.
func (s *Stage) task(ctx context.Context, id uuid.UUID,
	status platform.TaskStatus) (task platform.AgentTask, err error) {
	control := app.NewControlTask(s.UnitOfWork)
	err = s.Await(ctx, fmt.Sprintf("task %s is %s", id, status), func(ctx context.Context) (bool, error) {
		if task, err = control.Find(ctx, s.Workspace, id); err != nil {
			return false, err
		}
		if task.Status.Finished() && task.Status != status {
			return false, fmt.Errorf("%w: task %s is %s: %s", ErrFlowFailed, id, task.Status, task.FailureReason)
		}
		return task.Status == status, nil
	})
	return task, err
}
