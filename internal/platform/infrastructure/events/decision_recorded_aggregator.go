package events

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// DecisionRecordedAggregatorName is part of the aggregator's dedup key. It must never change.
const DecisionRecordedAggregatorName = "platform.decision_recorded_aggregator"

// DecisionRecordedEvent is what the aggregator reads of decision.recorded.
type DecisionRecordedEvent struct {
	DecisionID     uuid.UUID      `json:"decision_id"`
	RuleID         string         `json:"rule_id"`
	Outcome        domain.Outcome `json:"outcome"`
	OverrideReason string         `json:"override_reason"`
}

// DecisionRecordedAggregator counts recorded decisions in override patterns. It handles batches, because many decisions
// are about few rules and would write the same rows one by one. Count omits those that were counted before.
func DecisionRecordedAggregator(
	count func(context.Context, uuid.NullUUID, []domain.Ruling) error,
) events.BatchHandler {
	return events.BatchHandlerOf(func(_ events.Envelope, recorded DecisionRecordedEvent) (domain.Ruling, error) {
		ruling := domain.Ruling(recorded)
		return ruling, ruling.Validate()
	}, count)
}
