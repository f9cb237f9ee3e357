package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/application"
	"spectral/internal/worlds/domain"
)

// CurationDecisionApplierName is part of the applier's dedup key. It must never change.
const CurationDecisionApplierName = "worlds.curation_decision_applier"

// CurationDecidedEvent is what worlds reads of platform.curation.decided.
type CurationDecidedEvent struct {
	DecisionID  uuid.UUID `json:"decision_id"`
	CandidateID uuid.UUID `json:"candidate_id"`
	Verdict     string    `json:"verdict"`
	DecidedAt   time.Time `json:"decided_at"`
}

// CurationDecisionApplier applies curation decisions to rule candidates. A decision that cannot be applied is an
// outcome, not an error. It handles batches: with one call per event, two batches could wait for each other's
// candidates.
func CurationDecisionApplier(decisions *application.ApplyDecision) events.BatchHandler {
	return events.BatchHandlerOf(func(e events.Envelope, decided CurationDecidedEvent) (domain.CurationDecision, error) {
		decision := domain.CurationDecision{
			ID: decided.DecisionID, CandidateID: decided.CandidateID, Verdict: domain.CurationVerdict(decided.Verdict),
			// the precision of the database, so that it compares equal
			DecidedAt: decided.DecidedAt.Truncate(time.Microsecond),
		}
		return decision, decision.Validate(e.OccurredAt)
	}, decisions.Apply)
}
