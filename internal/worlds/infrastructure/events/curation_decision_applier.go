package events

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
)

// CurationDecisionApplierName is half of the applier's dedup key: it never changes.
const CurationDecisionApplierName = "worlds.curation_decision_applier"

// CurationDecidedEvent is what worlds reads of platform.curation.decided.
type CurationDecidedEvent struct {
	DecisionID  uuid.UUID `json:"decision_id"`
	CandidateID uuid.UUID `json:"candidate_id"`
	Verdict     string    `json:"verdict"`
	DecidedAt   time.Time `json:"decided_at"`
}

// DecisionApplier is what the applier hands decisions to.
type DecisionApplier interface {
	// Apply rules on each decision once, follows it, and publishes the outcome.
	Apply(ctx context.Context, workspace uuid.NullUUID, decisions []domain.CurationDecision) error
}

// CurationDecisionApplier applies curation decisions to rule candidates. A decision that cannot be applied is an
// outcome too, and no error. It takes them in batches: one at a time, two batches would wait for each other's candidates.
func CurationDecisionApplier(decisions DecisionApplier) events.BatchHandler {
	return events.BatchHandlerOf(func(e events.Envelope, decided CurationDecidedEvent) (domain.CurationDecision, error) {
		decision := domain.CurationDecision{
			ID: decided.DecisionID, CandidateID: decided.CandidateID, Verdict: domain.CurationVerdict(decided.Verdict),
			// as the database keeps it, so that it compares equal to itself
			DecidedAt: decided.DecidedAt.Truncate(time.Microsecond),
		}
		return decision, decision.Validate(e.OccurredAt)
	}, decisions.Apply)
}
