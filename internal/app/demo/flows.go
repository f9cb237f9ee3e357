package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
)

// Flow is one path of events through the product, from a change in one context to its effects in others.
type Flow struct {
	Name  string // its name on the command line
	About string // one line
	Run   func(*Stage, context.Context) error
}

// Flows returns all flows, in the order in which the demo runs them.
func Flows() []Flow {
	return []Flow{
		{"cards", "worlds publishes a world model card, platform projects it into a system card", (*Stage).cards},
		{"targets", "an event for every context, one for platform, and one for a context without a handler",
			(*Stage).targets},
		{"decisions", "platform records decisions about a rule's proposals, and both contexts count them",
			(*Stage).decisions},
		{"scans", "worlds scans a card, and indexes the findings of the completed scan", (*Stage).scans},
		{"clusters", "platform detects a failure cluster, worlds proposes a rule (both versions)", (*Stage).clusters},
		{"memories", "platform promotes a memory, worlds routes it to a rule candidate", (*Stage).memories},
		{"curation", "platform decides on rule candidates of worlds, and records the outcome that worlds reports",
			(*Stage).curation},
		{"tasks", "an agent of platform reads a card from worlds, and delivers a briefing when a person approves",
			(*Stage).tasks},
	}
}

// Stage is where a flow runs: a running worker and a new workspace.
type Stage struct {
	Demo
	Workspace uuid.NullUUID

	since uuid.UUID // an id from before the first event
}

var errFlowFailed = errors.New("the flow did not end as it should")

// RunFlows runs the named flows, or all of them without names, one after another. It stops at the first that fails.
func (d Demo) RunFlows(ctx context.Context, names []string) error {
	for _, flow := range Flows() {
		if len(names) > 0 && !slices.Contains(names, flow.Name) {
			continue
		}
		_, _ = fmt.Fprintf(d.Out, "%s: %s\n", flow.Name, flow.About)
		if err := flow.Run(d.stage(), ctx); err != nil {
			return fmt.Errorf("flow %s: %w", flow.Name, err)
		}
	}
	return nil
}

func (d Demo) stage() *Stage {
	return &Stage{Demo: d, since: uuid.Must(uuid.NewV7()), Workspace: uuid.NullUUID{UUID: uuid.New(), Valid: true}}
}

// Say writes a line about what was done or seen.
func (s *Stage) Say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Out, "  "+format+"\n", args...)
}

// inContext returns the result of read, which it calls in a transaction of a context.
func inContext[T any](ctx context.Context, s *Stage, scope events.Scope,
	read func(events.Tx) (T, error)) (value T, err error) {
	err = s.UnitOfWork.Do(ctx, scope, s.Workspace, func(tx events.Tx, _ events.PublisherFor) error {
		value, err = read(tx)
		return err
	})
	return value, err
}

// latestCard returns the card that platform projected last.
func (s *Stage) latestCard(ctx context.Context) (domain.SystemCard, error) {
	return inContext(ctx, s, events.Platform, func(tx events.Tx) (domain.SystemCard, error) {
		return platformpg.NewSystemCards(tx).Latest(ctx, s.Workspace)
	})
}

// Await polls until done returns true. If that takes too long, the error names what.
func (s *Stage) Await(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	late := fmt.Errorf("%w: it took longer than %s until %s", errFlowFailed, arriveWithin, what)
	ctx, cancel := context.WithTimeoutCause(ctx, arriveWithin, late)
	defer cancel()
	poll := time.NewTicker(pollEvery / 5)
	defer poll.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Settled waits until the workspace has n events and all are settled, and says the outcome of each. It returns
// errFlowFailed if one has failed or there are more.
func (s *Stage) Settled(ctx context.Context, n int) error {
	trail, err := s.trail(ctx, n)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(trail, func(step operator.Step) bool { return step.Status != "delivered" }); i >= 0 {
		return fmt.Errorf("%w: %s is %s: %s", errFlowFailed, trail[i].EventType, trail[i].Status, trail[i].LastError)
	}
	if len(trail) != n {
		return fmt.Errorf("%w: published %s, %d expected", errFlowFailed, operator.Counted(len(trail), "event"), n)
	}
	return nil
}

// trail waits like Settled, and returns the events with any outcome.
func (s *Stage) trail(ctx context.Context, n int) (trail []operator.Step, err error) {
	err = s.Await(ctx, fmt.Sprintf("%d events are settled", n), func(ctx context.Context) (bool, error) {
		trail, err = operator.New(s.Pool).Trail(ctx, s.Workspace.UUID, s.since)
		return len(trail) >= n && !slices.ContainsFunc(trail, func(step operator.Step) bool { return !step.Settled() }), err
	})
	for _, step := range trail {
		by, reason := cmp.Or(strings.Join(step.HandledBy, ", "), "no handler"), ""
		if step.LastError != "" {
			reason = " after " + step.LastError
		}
		s.Say("%s v%d is %s, handled by %s%s", step.EventType, step.EventVersion, step.Status, by, reason)
	}
	return trail, err
}
