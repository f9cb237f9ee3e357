package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// CurationAppliedType is the event that reports the outcome of a curation decision to platform.
const CurationAppliedType = "worlds.curation.applied"

// CurationApplied is the outcome of a curation decision. There is one for each decision.
type CurationApplied struct {
	// DecisionID is the decision's id in platform.curation.decided.
	DecisionID uuid.UUID `json:"decision_id"`
	// CandidateID is the candidate's id in the decision.
	CandidateID uuid.UUID `json:"candidate_id"`
	// Outcome says whether the candidate has the state that the decision asked for.
	Outcome string `json:"outcome" jsonschema:"enum=applied,enum=refused"`
	// Reason is why a decision was refused: unknown_candidate, or superseded by a later decision. More may be added.
	Reason string `json:"reason,omitempty"`
	// AppliedAt is when the decision was applied or refused.
	AppliedAt time.Time `json:"applied_at"`
}

// CurationAppliedContract declares the event.
func CurationAppliedContract() events.Contract {
	return events.Contract{
		Type: CurationAppliedType, Version: 1, Source: events.Worlds, Target: events.Platform,
		Payload: CurationApplied{
			DecisionID:  uuid.MustParse("01936e5c-7d00-7000-8000-0000000000e1"),
			CandidateID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000e2"),
			Outcome:     "refused", Reason: "superseded", AppliedAt: time.Date(2026, 3, 2, 9, 0, 1, 0, time.UTC),
		}, ContentClass: events.Operational,
	}
}
