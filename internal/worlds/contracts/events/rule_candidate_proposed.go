package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// RuleCandidateProposedType is the event that a rule candidate waits for a decision.
const RuleCandidateProposedType = "worlds.rule_candidate.proposed"

// RuleCandidateProposed is a rule candidate as it was first proposed. There is one for each candidate.
type RuleCandidateProposed struct {
	// CandidateID is the id that decisions name.
	CandidateID uuid.UUID `json:"candidate_id"`
	// Origin is what led to the candidate.
	Origin string `json:"origin" jsonschema:"enum=failure_cluster,enum=memory"`
	// OriginID is the id of that failure cluster or memory.
	OriginID uuid.UUID `json:"origin_id"`
	// Statement is the rule, for people.
	Statement string `json:"statement" jsonschema:"minLength=1"`
	// Occurrences is the number of failures or observations behind it.
	Occurrences int64 `json:"occurrences" jsonschema:"minimum=1"`
	// Confidence is how likely it is a rule, from 0 to 1.
	Confidence float64 `json:"confidence" jsonschema:"minimum=0,maximum=1"`
	// ProposedAt is when it was proposed.
	ProposedAt time.Time `json:"proposed_at"`
}

// RuleCandidateProposedContract declares the event. No handler consumes it.
func RuleCandidateProposedContract() events.Contract {
	return events.Contract{
		Type: RuleCandidateProposedType, Version: 1, Source: events.Worlds,
		Payload: RuleCandidateProposed{
			CandidateID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000e2"), Origin: "memory",
			OriginID:  uuid.MustParse("01936e5c-7d00-7000-8000-0000000000a1"),
			Statement: "Ask a person before a card is deleted.", Occurrences: 2, Confidence: 0.5,
			ProposedAt: time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC),
		}, ContentClass: events.WorkspaceContent, Unconsumed: true,
	}
}
