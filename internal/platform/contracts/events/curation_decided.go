package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// CurationDecidedType is the event that a curator has decided about a rule candidate. Its target is worlds, which
// answers each decision with one worlds.curation.applied.
const CurationDecidedType = "platform.curation.decided"

// CurationDecided is a curator's decision about a rule candidate.
type CurationDecided struct {
	// DecisionID is the decision's id. Its outcome names it.
	DecisionID uuid.UUID `json:"decision_id"`
	// CandidateID is the id of the rule candidate in worlds.
	CandidateID uuid.UUID `json:"candidate_id"`
	// Verdict is whether the candidate is approved or rejected.
	Verdict string `json:"verdict" jsonschema:"enum=approve,enum=reject"`
	// Note is the curator's text for people.
	Note string `json:"note,omitempty"`
	// DecidedBy names the curator.
	DecidedBy string `json:"decided_by" jsonschema:"minLength=1,maxLength=200"`
	// DecidedAt is when it was decided. Of two decisions about a candidate the later one counts; of two at the same
	// time, the one with the higher id.
	DecidedAt time.Time `json:"decided_at"`
}

// CurationDecidedContract declares the event.
func CurationDecidedContract() events.Contract {
	return events.Contract{
		Type: CurationDecidedType, Version: 1, Source: events.Platform, Target: events.Worlds,
		Payload: CurationDecided{
			DecisionID:  uuid.MustParse("01936e5c-7d00-7000-8000-0000000000e1"),
			CandidateID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000e2"),
			Verdict:     "approve", Note: "seen twice this week", DecidedBy: "the curator",
			DecidedAt: time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC),
		}, ContentClass: events.WorkspaceContent,
	}
}
