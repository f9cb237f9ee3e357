package application

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
)

// CurationRulings remembers what became of each decision, in one transaction.
type CurationRulings interface {
	// Add stores the ruling on a decision, unless it has one already: then it reports false.
	Add(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision, ruling domain.CurationRuling, at time.Time) (added bool, err error)
}

// ApplyDecision applies curation decisions to rule candidates. It is built for the transaction of the event that
// brings the decision. Not safe for concurrent use.
type ApplyDecision struct {
	candidates RuleCandidates
	rulings    CurationRulings
	publisher  events.EventPublisher
	now        func() time.Time
}

// NewApplyDecision composes the use case for one transaction, which candidates, rulings and publisher are bound to.
func NewApplyDecision(candidates RuleCandidates, rulings CurationRulings, publisher events.EventPublisher, now func() time.Time) *ApplyDecision {
	return &ApplyDecision{candidates: candidates, rulings: rulings, publisher: publisher, now: now}
}

// Apply rules on a decision, follows it and publishes worlds.curation.applied, which tells platform. A decision
// that was ruled on before changes nothing and publishes nothing: the stored ruling sees to it, for longer than
// deliveries are remembered.
func (a *ApplyDecision) Apply(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision) error {
	candidate, found, err := a.candidates.Lock(ctx, workspace, decision.CandidateID)
	if err != nil {
		return err
	}
	ruling := domain.RefuseUnknown()
	if found {
		ruling = candidate.Decide(decision)
	}
	now := a.now().Truncate(time.Microsecond) // as the database keeps it
	if added, err := a.rulings.Add(ctx, workspace, decision, ruling, now); err != nil || !added {
		return err
	}
	if ruling.Outcome == domain.CurationApplied {
		if err := a.candidates.Put(ctx, workspace, candidate, now); err != nil {
			return err
		}
	}
	envelope, err := events.NewEnvelope(contracts.CurationAppliedContract(), contracts.CurationApplied{
		DecisionID: decision.ID, CandidateID: decision.CandidateID, Outcome: string(ruling.Outcome), Reason: ruling.Reason, AppliedAt: now.UTC(),
	})
	if err != nil {
		return err
	}
	envelope.WorkspaceID, envelope.OccurredAt, envelope.Target = workspace, now, events.Platform
	return a.publisher.Publish(ctx, envelope)
}
