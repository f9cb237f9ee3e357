package events

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"spectral/internal/core/check"
	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
)

// RuleHealthRecorderName is part of the recorder's dedup key. It must never change.
const RuleHealthRecorderName = "worlds.rule_health_recorder"

// DecisionRecordedEvent is what worlds reads of decision.recorded.
type DecisionRecordedEvent struct {
	DecisionID uuid.UUID `json:"decision_id"`
	RuleID     string    `json:"rule_id"`
	Outcome    string    `json:"outcome"`
}

// RuleHealthRecorder counts the decisions about rules' proposals. It handles batches, because many decisions are about
// few rules and would write the same rows one by one. Count omits those that were counted before.
func RuleHealthRecorder(count func(context.Context, uuid.NullUUID, []domain.RuleDecision) error) events.BatchHandler {
	return events.BatchHandlerOf(func(_ events.Envelope, recorded DecisionRecordedEvent) (domain.RuleDecision, error) {
		decision := domain.RuleDecision{DecisionID: recorded.DecisionID, RuleID: recorded.RuleID,
			Overridden: recorded.Outcome == "overridden"}
		return decision, errors.Join(check.OneOf("outcome", recorded.Outcome, "followed", "overridden"),
			decision.Validate())
	}, count)
}
