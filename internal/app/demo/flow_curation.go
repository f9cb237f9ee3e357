package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	platformdomain "spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsdomain "spectral/internal/worlds/domain"
)

func curationFlow() Flow {
	return Flow{
		Name: "curation", About: "platform decides on rule candidates of worlds, and records the outcome that worlds reports",
		Run: func(ctx context.Context, s *Stage) error {
			failures := demoFailures(platformdomain.FailureCount{Kind: "read timeout", Count: 20})
			cluster, err := app.NewDetectFailureCluster(s.UnitOfWork).Detect(ctx, s.Workspace, failures)
			if err != nil {
				return err
			}
			var candidate worldsdomain.RuleCandidate
			if err := s.Await(ctx, "a rule is proposed", func(ctx context.Context) (bool, error) {
				candidate, err = s.candidate(ctx, worldsdomain.FromFailureCluster, cluster.ID)
				if errors.Is(err, ErrFlowFailed) {
					return false, nil
				}
				return err == nil, err
			}); err != nil {
				return err
			}
			s.sayCandidate(candidate)
			decide := app.NewDecideCuration(s.UnitOfWork)
			approve := platformdomain.ApproveCandidate
			approval, err := decide.Decide(ctx, s.Workspace, candidate.ID, approve, "seen often enough", "ada")
			if err != nil {
				return err
			}
			mistake, err := decide.Decide(ctx, s.Workspace, uuid.New(), platformdomain.RejectCandidate, "", "ada")
			if err != nil {
				return err
			}
			s.Say("platform stored two decisions, one about a candidate that does not exist, and published them for worlds")
			if err := s.Settled(ctx, 6); err != nil {
				return err
			}
			if candidate, err = s.candidate(ctx, worldsdomain.FromFailureCluster, cluster.ID); err != nil {
				return err
			}
			if candidate.State != worldsdomain.ApprovedCandidate {
				return fmt.Errorf("%w: the rule candidate is %s", ErrFlowFailed, candidate.State)
			}
			s.Say("worlds has the rule candidate as %s", candidate.State)
			for _, expected := range []struct {
				id      uuid.UUID
				outcome platformdomain.CurationOutcome
			}{{approval, platformdomain.CurationApplied}, {mistake, platformdomain.CurationRefused}} {
				decision, err := s.decision(ctx, expected.id)
				if err != nil {
					return err
				}
				outcome := string(decision.Outcome)
				if decision.Reason != "" {
					outcome += ": " + decision.Reason
				}
				s.Say("platform knows the decision to %s as %s", decision.Verdict, outcome)
				if decision.Outcome != expected.outcome {
					return fmt.Errorf("%w: the decision is %s, not %s", ErrFlowFailed, decision.Outcome, expected.outcome)
				}
			}
			return nil
		},
	}
}

// decision returns a curation decision as platform stored it.
func (s *Stage) decision(ctx context.Context, id uuid.UUID) (decision platformdomain.CurationDecision, err error) {
	found := false
	err = s.UnitOfWork.Do(ctx, events.Platform, s.Workspace, func(tx events.Tx, _ events.PublisherFor) error {
		decision, found, err = platformpg.NewCurationDecisions(tx).Lock(ctx, s.Workspace, id)
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: platform does not have a decision", ErrFlowFailed)
	}
	return decision, err
}
