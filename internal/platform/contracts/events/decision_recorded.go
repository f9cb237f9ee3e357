package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// DecisionRecordedType is the event that a decision about a rule's proposal was recorded.
const DecisionRecordedType = "decision.recorded"

// DecisionRecorded is a decision about a rule's proposal. It never changes, and may be published more than once.
type DecisionRecorded struct {
	// DecisionID identifies the decision within its workspace.
	DecisionID uuid.UUID `json:"decision_id"`
	// RuleID is the rule that made the proposal.
	RuleID string `json:"rule_id" jsonschema:"minLength=1,maxLength=200"`
	// Outcome says whether the proposal was followed or overridden.
	Outcome string `json:"outcome" jsonschema:"enum=followed,enum=overridden"`
	// OverrideReason says why it was overridden, in one line. It is absent if it was followed.
	OverrideReason string `json:"override_reason,omitempty" jsonschema:"minLength=1"`
	// DecidedBy is the person or the agent who decided.
	DecidedBy string `json:"decided_by" jsonschema:"minLength=1,maxLength=200"`
	// DecidedAt is when it was decided, in UTC to the microsecond. Decisions may be recorded later and in another order.
	DecidedAt time.Time `json:"decided_at"`
}

// DecisionRecordedContract declares the event.
func DecisionRecordedContract() events.Contract {
	return events.Contract{
		Type: DecisionRecordedType, Version: 1, Source: events.Platform,
		Payload: DecisionRecorded{
			DecisionID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000d1"), RuleID: "berth-depth", Outcome: "overridden",
			OverrideReason: "surveyed last week", DecidedBy: "the harbour master",
			DecidedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		}, ContentClass: events.WorkspaceContent, Sensitive: []string{"override_reason", "decided_by"},
	}
}
