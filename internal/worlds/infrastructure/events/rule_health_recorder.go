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
type RuleHealthRecorder struct{ health RuleHealth }

// NewRuleHealthRecorder builds the handler over health.
func NewRuleHealthRecorder(health RuleHealth) RuleHealthRecorder {
	return RuleHealthRecorder{health: health}
}

// HandleBatch implements [events.BatchHandler].
func (r RuleHealthRecorder) HandleBatch(ctx context.Context, batch []events.Envelope) error {
	decisions := make([]domain.RuleDecision, len(batch))
	for i, e := range batch {
		recorded, err := events.Decode[DecisionRecordedEvent](e)
		if err != nil {
			return err
		}
		decisions[i], err = recorded.decision()
		if err == nil {
			err = decisions[i].Validate(e.OccurredAt)
		}
		if err != nil {
			return &events.PayloadError{EventType: e.EventType, Err: err}
		}
	}
	return r.health.Count(ctx, batch[0].WorkspaceID, decisions)
}

func (d DecisionRecordedEvent) decision() (domain.RuleDecision, error) {
	if d.Outcome != "followed" && d.Outcome != "overridden" {
		return domain.RuleDecision{}, fmt.Errorf("outcome is %.40q, must be followed or overridden", d.Outcome)
	}
	return domain.RuleDecision{DecisionID: d.DecisionID, RuleID: d.RuleID, Overridden: d.Outcome == "overridden", DecidedAt: d.DecidedAt}, nil
}
