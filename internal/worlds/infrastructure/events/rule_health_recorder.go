package events

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
)

// RuleHealthRecorderName is half of the recorder's dedup key: it never changes.
const RuleHealthRecorderName = "worlds.rule_health_recorder"

// DecisionRecordedEvent is what worlds reads of decision.recorded.
type DecisionRecordedEvent struct {
	DecisionID uuid.UUID `json:"decision_id"`
	RuleID     string    `json:"rule_id"`
	Outcome    string    `json:"outcome"`
	DecidedAt  time.Time `json:"decided_at"`
}

// RuleHealth is what the recorder writes to.
type RuleHealth interface {
	// Count adds decisions to the health of their rules, except for those that were counted before.
	Count(ctx context.Context, workspace uuid.NullUUID, decisions []domain.RuleDecision) error
}

// RuleHealthRecorder keeps the health of rules by the decisions on their proposals. It takes them in batches: many
// decisions are on few rules, and one at a time each would write the same rows.
func RuleHealthRecorder(health RuleHealth) events.BatchHandler {
	return events.BatchHandlerOf(func(e events.Envelope, recorded DecisionRecordedEvent) (domain.RuleDecision, error) {
		if recorded.Outcome != "followed" && recorded.Outcome != "overridden" {
			return domain.RuleDecision{}, fmt.Errorf("outcome is %.40q, must be followed or overridden", recorded.Outcome)
		}
		decision := domain.RuleDecision{
			DecisionID: recorded.DecisionID, RuleID: recorded.RuleID, Overridden: recorded.Outcome == "overridden", DecidedAt: recorded.DecidedAt,
		}
		return decision, decision.Validate(e.OccurredAt)
	}, health.Count)
}
