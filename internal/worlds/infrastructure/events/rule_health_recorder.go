package events

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

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
	DecidedAt  time.Time `json:"decided_at"`
}

// RuleHealth is where the recorder writes.
type RuleHealth interface {
	// Count adds decisions to the health of their rules, except those that were counted before.
	Count(ctx context.Context, workspace uuid.NullUUID, decisions []domain.RuleDecision) error
}

// RuleHealthRecorder counts the decisions about rules' proposals. It handles batches, because many decisions are about
// few rules and would write the same rows one by one.
func RuleHealthRecorder(health RuleHealth) events.BatchHandler {
	return events.BatchHandlerOf(func(e events.Envelope, recorded DecisionRecordedEvent) (domain.RuleDecision, error) {
		if recorded.Outcome != "followed" && recorded.Outcome != "overridden" {
			return domain.RuleDecision{}, fmt.Errorf("outcome is %.40q, must be followed or overridden", recorded.Outcome)
		}
		decision := domain.RuleDecision{
			DecisionID: recorded.DecisionID, RuleID: recorded.RuleID, Overridden: recorded.Outcome == "overridden",
			DecidedAt: recorded.DecidedAt,
		}
		return decision, decision.Validate(e.OccurredAt)
	}, health.Count)
}
