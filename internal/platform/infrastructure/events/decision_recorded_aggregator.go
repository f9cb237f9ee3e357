package events

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// DecisionRecordedAggregatorName is half of the aggregator's dedup key: it never changes.
const DecisionRecordedAggregatorName = "platform.decision_recorded_aggregator"

// DecisionRecordedEvent is what the aggregator reads of decision.recorded.
type DecisionRecordedEvent struct {
	DecisionID     uuid.UUID `json:"decision_id"`
	RuleID         string    `json:"rule_id"`
	Outcome        string    `json:"outcome"`
	OverrideReason string    `json:"override_reason"`
	DecidedAt      time.Time `json:"decided_at"`
}

// OverridePatterns is what the aggregator writes to.
type OverridePatterns interface {
	// Count adds rulings to the patterns of their rules, except for those that were counted before.
	Count(ctx context.Context, workspace uuid.NullUUID, rulings []domain.Ruling) error
}

// DecisionRecordedAggregator adds recorded decisions up to override patterns. It takes them in batches: many decisions
// are on few rules, and one at a time each would write the same rows.
func DecisionRecordedAggregator(patterns OverridePatterns) events.BatchHandler {
	return events.BatchHandlerOf(func(e events.Envelope, recorded DecisionRecordedEvent) (domain.Ruling, error) {
		ruling := domain.Ruling{
			DecisionID: recorded.DecisionID, RuleID: recorded.RuleID, Outcome: domain.Outcome(recorded.Outcome),
			OverrideReason: recorded.OverrideReason, DecidedAt: recorded.DecidedAt,
		}
		return ruling, ruling.Validate(e.OccurredAt)
	}, patterns.Count)
}
