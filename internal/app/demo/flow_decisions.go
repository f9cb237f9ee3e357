package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsdomain "spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// decisionFlow has two contexts on one claim.
func decisionFlow() Flow {
	return Flow{
		Name: "decisions", About: "platform records what was decided on the proposals of a rule, and both contexts add it up",
		Run: func(ctx context.Context, s *Stage) error {
			const rule = "berth-depth"
			decisions, err := madeUpDecisions(rule, "", "", "Surveyed last week", "", "surveyed  last week")
			if err != nil {
				return err
			}
			record := app.NewRecordDecision(s.UnitOfWork)
			for _, d := range decisions {
				if _, err := record.Record(ctx, s.Workspace, d); err != nil {
					return err
				}
			}
			if err := s.Say("platform recorded %d decisions on rule %s, each with its event in one transaction", len(decisions), rule); err != nil {
				return err
			}
			again, err := record.Record(ctx, s.Workspace, decisions[0])
			if err != nil {
				return err
			}
			if again {
				return fmt.Errorf("%w: a decision was recorded twice", ErrFlowFailed)
			}
			other := decisions[0]
			other.DecidedBy = "somebody else"
			_, err = record.Record(ctx, s.Workspace, other)
			if !errors.As(err, new(*domain.DecisionConflictError)) {
				return fmt.Errorf("%w: the other content of a decision: %w", ErrFlowFailed, err)
			}
			if err := s.Say("one of them again changed nothing, and with other content was refused"); err != nil {
				return err
			}
			if err := s.Settled(ctx, len(decisions)); err != nil {
				return err
			}
			return sayWhatDecisionsCameTo(ctx, s, rule)
		},
	}
}

// madeUpDecisions are one for each reason to override the rule's proposal; for none it was followed.
func madeUpDecisions(rule string, reasons ...string) ([]domain.Decision, error) {
	decisions := make([]domain.Decision, len(reasons))
	for i, reason := range reasons {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		outcome := domain.Followed
		if reason != "" {
			outcome = domain.Overridden
		}
		decisions[i] = domain.Decision{
			Ruling:    domain.Ruling{DecisionID: id, RuleID: rule, Outcome: outcome, OverrideReason: reason, DecidedAt: time.Now()},
			DecidedBy: "the harbour master",
		}
	}
	return decisions, nil
}

func sayWhatDecisionsCameTo(ctx context.Context, s *Stage, rule string) error {
	var pattern domain.OverridePattern
	err := s.UnitOfWork.Do(ctx, events.Platform, s.Workspace, func(tx events.Tx, _ events.PublisherFor) (err error) {
		pattern, err = platformpg.NewOverridePatterns(tx).Of(ctx, s.Workspace, rule)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.Say("platform counts %d followed, %d overridden", pattern.Followed, pattern.Overridden); err != nil {
		return err
	}
	for _, reason := range pattern.Reasons {
		if err := s.Say("overridden %d times because %q", reason.Overridden, reason.Reason); err != nil {
			return err
		}
	}
	var health worldsdomain.RuleHealth
	err = s.UnitOfWork.Do(ctx, events.Worlds, s.Workspace, func(tx events.Tx, _ events.PublisherFor) (err error) {
		health, err = worldspg.NewRuleHealth(tx).Of(ctx, s.Workspace, rule)
		return err
	})
	if err != nil {
		return err
	}
	return s.Say("worlds has rule %s as %s", rule, health.State())
}
