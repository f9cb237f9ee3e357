package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
)

// Decisions stores decisions in one transaction.
type Decisions interface {
	// Record stores decision unless one of its id is there already: then it returns that one, and recorded is false.
	Record(ctx context.Context, workspace uuid.NullUUID, decision domain.Decision, at time.Time) (standing domain.Decision, recorded bool, err error)
}

// RecordDecision records what a person or an agent decided on the proposal of a rule: the decision and the event that
// says so commit together or not at all. Safe for concurrent use.
type RecordDecision struct {
	transact UnitOfWork[Decisions]
	now      func() time.Time
}

// NewRecordDecision composes the use case.
func NewRecordDecision(transact UnitOfWork[Decisions], now func() time.Time) *RecordDecision {
	return &RecordDecision{transact: transact, now: now}
}

// Record stores decision in workspace and publishes decision.recorded. Recording it again changes nothing, publishes
// nothing and reports false; under its id with other content it is refused with a [*domain.DecisionConflictError].
func (r *RecordDecision) Record(ctx context.Context, workspace uuid.NullUUID, decision domain.Decision) (recorded bool, err error) {
	now := r.now()
	decision = decision.Recordable()
	if err := decision.Validate(now); err != nil {
		return false, fmt.Errorf("record decision %s: %w", decision.DecisionID, err)
	}
	err = r.transact(ctx, workspace, func(decisions Decisions, publisher events.EventPublisher) error {
		standing, first, err := decisions.Record(ctx, workspace, decision, now)
		if err != nil {
			return err
		}
		if !first {
			return standing.MustBe(decision)
		}
		recorded = true
		return publish(ctx, publisher, workspace, now, contracts.DecisionRecordedContract(), contracts.DecisionRecorded{
			DecisionID: decision.DecisionID, RuleID: decision.RuleID, Outcome: string(decision.Outcome),
			OverrideReason: decision.OverrideReason, DecidedBy: decision.DecidedBy, DecidedAt: decision.DecidedAt,
		})
	})
	if err != nil {
		return false, fmt.Errorf("record decision %s: %w", decision.DecisionID, err)
	}
	return recorded, nil
}
