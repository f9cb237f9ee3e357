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

// decisionFlow has handlers of two contexts on one claim.
func decisionFlow() Flow {
	return Flow{
		Name: "decisions", About: "platform records decisions about a rule's proposals, and both contexts count them",
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
			s.Say("platform recorded %d decisions on rule %s, each with its event in one transaction", len(decisions), rule)
			again, err := record.Record(ctx, s.Workspace, decisions[0])
			if err != nil {
				return err
			}
			if again {
				return fmt.Errorf("%w: a decision was recorded twice", ErrFlowFailed)
			}
			other := decisions[0]
			other.DecidedBy = "another"
			_, err = record.Record(ctx, s.Workspace, other)
			if !errors.As(err, new(*domain.DecisionConflictError)) {
				return fmt.Errorf("%w: a decision with other content was not refused: %w", ErrFlowFailed, err)
			}
			s.Say("recording one again changed nothing, and with other content it was refused")
			if err := s.Settled(ctx, len(decisions)); err != nil {
				return err
			}
			return sayTotals(ctx, s, rule)
		},
	}
}

// madeUpDecisions returns a decision per reason: overridden for the reason, or followed for an empty one.
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
			Ruling: domain.Ruling{
				DecisionID: id, RuleID: rule, Outcome: outcome, OverrideReason: reason, DecidedAt: time.Now(),
			},
			DecidedBy: "the harbour master",
		}
	}
	return decisions, nil
}

func sayTotals(ctx context.Context, s *Stage, rule string) error {
	readPattern := func(tx events.Tx) (domain.OverridePattern, error) {
		return platformpg.NewOverridePatterns(tx).Of(ctx, s.Workspace, rule)
	}
	pattern, err := inContext(ctx, s.UnitOfWork, events.Platform, s.Workspace, readPattern)
	if err != nil {
		return err
	}
	s.Say("platform counts %d followed, %d overridden", pattern.Followed, pattern.Overridden)
	for _, reason := range pattern.Reasons {
		s.Say("overridden %d times because %q", reason.Overridden, reason.Reason)
	}
	readHealth := func(tx events.Tx) (worldsdomain.RuleHealth, error) {
		return worldspg.NewRuleHealth(tx).Of(ctx, s.Workspace, rule)
	}
	health, err := inContext(ctx, s.UnitOfWork, events.Worlds, s.Workspace, readHealth)
	if err != nil {
		return err
	}
	s.Say("worlds has rule %s as %s", rule, health.State())
	return nil
}
