package application

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
)

// Decisions stores decisions in one transaction.
type Decisions interface {
	// Record stores decision and returns it. If its id is stored already, it returns the stored one, and false.
	Record(ctx context.Context, workspace uuid.NullUUID, decision domain.Decision, at time.Time) (stored domain.Decision,
		recorded bool, err error)
}

// RecordDecision records the decision of a person or an agent about a rule's proposal. The decision and its event
// commit together or not at all. Safe for concurrent use.
type RecordDecision struct {
	Transact UnitOfWork[Decisions]
	Now      func() time.Time
}

// Record stores decision in workspace and publishes decision.recorded. A second call changes nothing, publishes
// nothing and returns false. The error is a [*domain.DecisionConflictError] if the id has another content.
func (r *RecordDecision) Record(ctx context.Context, workspace uuid.NullUUID,
	decision domain.Decision) (recorded bool, err error) {
	defer wrap(&err, "record decision %s", decision.DecisionID)
	now := r.Now()
	decision = decision.Recordable()
	if err := decision.Validate(now); err != nil {
		return false, err
	}
	err = r.Transact(ctx, workspace, func(decisions Decisions, publisher events.EventPublisher) error {
		stored, first, err := decisions.Record(ctx, workspace, decision, now)
		if err != nil {
			return err
		}
		if !first {
			return stored.CheckSame(decision)
		}
		recorded = true
		return publish(ctx, publisher, workspace, now, contracts.DecisionRecordedContract(), contracts.DecisionRecorded{
			DecisionID: decision.DecisionID, RuleID: decision.RuleID, Outcome: string(decision.Outcome),
			OverrideReason: decision.OverrideReason, DecidedBy: decision.DecidedBy, DecidedAt: decision.DecidedAt,
		})
	})
	return recorded, err
}
