package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	platformapp "spectral/internal/platform/application"
	platform "spectral/internal/platform/domain"
	worlds "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// cards publishes one card, as the demo does without flows.
func (s *Stage) cards(ctx context.Context) error {
	version, err := s.publishHarbour(ctx)
	if err != nil {
		return err
	}
	s.Say("worlds stored version %d of card harbour and published it, in one transaction", version)
	if err := s.Settled(ctx, 1); err != nil {
		return err
	}
	projected, err := s.latestCard(ctx)
	s.Say("platform has %s", describe(projected))
	return err
}

func (s *Stage) publishHarbour(ctx context.Context) (version int64, err error) {
	card, err := domain.NewWorldModelCard("harbour", "The Harbour of Veyra", "What is known about it.",
		json.RawMessage(`{"berths": 40}`))
	if err != nil {
		return 0, err
	}
	return app.NewPublishCard(s.UnitOfWork).Publish(ctx, s.Workspace, card)
}

// targets publishes an event for every context, for one context, and for a context that has no handler of it.
func (s *Stage) targets(ctx context.Context) error {
	for i, target := range []events.Scope{"", events.Platform, events.Worlds} {
		envelope, err := events.NewEnvelope(worlds.WorldModelCardPublishedContract(),
			worlds.WorldModelCardPublished{CardID: fmt.Sprintf("card-%d", i), Version: 1, Title: "A card"})
		if err != nil {
			return err
		}
		envelope.WorkspaceID, envelope.Target = s.Workspace, target
		work := func(_ events.Tx, publisherFor events.PublisherFor) error {
			return publisherFor().Publish(ctx, envelope)
		}
		if err := s.UnitOfWork.Do(ctx, events.Worlds, s.Workspace, work); err != nil {
			return err
		}
		s.Say("published for %s", []string{"every context", "only platform",
			"only worlds, which has no handler of it: this one fails on purpose, and the log says so"}[i])
	}
	trail, err := s.trail(ctx, 3)
	if err != nil {
		return err
	}
	for i, want := range []string{"delivered", "delivered", "failed"} {
		if trail[i].Status != want {
			return fmt.Errorf("%w: the event is %s, not %s: %s", errFlowFailed, trail[i].Status, want, trail[i].LastError)
		}
	}
	client, discard := operator.New(s.Pool), operator.Discard("workers demo flows", "it has shown a dead letter")
	failed, err := client.SelectNamed(ctx, []uuid.UUID{trail[2].ID}, discard)
	if err == nil {
		_, err = client.Apply(ctx, failed, discard, operator.Pace{})
	}
	if err == nil {
		s.Say("the last is a dead letter; the demo discards it, as `workers events discard` does")
	}
	return err
}

// scans stays within one context.
func (s *Stage) scans(ctx context.Context) error {
	const subject = "card:harbour"
	findings := domain.Findings{{Kind: "broken_link", Occurrences: 2}, {Kind: "stale_figure", Occurrences: 3}}
	scans := app.NewManageScans(s.UnitOfWork)
	id, err := scans.Start(ctx, s.Workspace, subject)
	if err != nil {
		return err
	}
	if _, err := scans.Complete(ctx, s.Workspace, id, findings); err != nil {
		return err
	}
	s.Say("worlds completed a scan of %s and published it, in one transaction", subject)
	if err := s.Settled(ctx, 1); err != nil {
		return err
	}
	found, err := inContext(ctx, s, events.Worlds, func(tx events.Tx) ([]domain.FoundIn, error) {
		return worldspg.NewScanIndex(tx).Search(ctx, s.Workspace, "broken_link", 10)
	})
	for _, f := range found {
		s.Say("searched for broken_link: %d in %s, of %d findings: %s",
			f.Occurrences, f.Subject, f.Total, strings.Join(f.Kinds, ", "))
	}
	return err
}

// tasks runs two agent tasks: a person approves one and cancels the other.
func (s *Stage) tasks(ctx context.Context) error {
	if _, err := s.publishHarbour(ctx); err != nil {
		return err
	}
	delivered, err := s.awaitApproval(ctx)
	if err != nil {
		return err
	}
	control := app.NewControlTask(s.UnitOfWork)
	if _, err := control.Approve(ctx, s.Workspace, delivered, "a person"); err != nil {
		return err
	}
	s.Say("a person approved: the task was queued and dispatched again, in one transaction")
	task, err := s.task(ctx, delivered, platform.TaskSucceeded)
	if err != nil {
		return err
	}
	s.Say("the task has succeeded with %s", task.Result)
	cancelled, err := s.awaitApproval(ctx)
	if err != nil {
		return err
	}
	task, err = control.Cancel(ctx, s.Workspace, cancelled, "a person")
	if err != nil {
		return err
	}
	s.Say("a person cancelled the second task: it is %s, and nothing was delivered", task.Status)
	return s.Settled(ctx, 4) // the card, and three dispatches
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

// task waits until a task has a status.
func (s *Stage) task(ctx context.Context, id uuid.UUID,
	status platform.TaskStatus) (task *platform.AgentTask, err error) {
	control := app.NewControlTask(s.UnitOfWork)
	err = s.Await(ctx, fmt.Sprintf("task %s is %s", id, status), func(ctx context.Context) (bool, error) {
		task, err = control.Find(ctx, s.Workspace, id)
		if err == nil && task.Status.Finished() && task.Status != status {
			err = fmt.Errorf("%w: task %s is %s: %s", errFlowFailed, id, task.Status, task.FailureReason)
		}
		return err == nil && task.Status == status, err
	})
	return task, err
}
