package events

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// CurationOutcomeRecorderName is part of the recorder's dedup key. It must never change.
const CurationOutcomeRecorderName = "platform.curation_outcome_recorder"

// CurationAppliedEvent is what platform reads of worlds.curation.applied.
type CurationAppliedEvent struct {
	DecisionID uuid.UUID              `json:"decision_id"`
	Outcome    domain.CurationOutcome `json:"outcome"`
	Reason     string                 `json:"reason"`
	AppliedAt  time.Time              `json:"applied_at"`
}

// CurationDecisions is where the recorder writes.
type CurationDecisions interface {
	// Lock returns a decision and locks it until the transaction ends. Found is false if there is none.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (decision domain.CurationDecision, found bool,
		err error)
	// Save stores the outcome of a decision that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision) error
}

// CurationOutcomeRecorder records the outcomes of curation decisions that worlds reports. A decision is committed with
// its event, so an outcome of an unknown decision, or a second and different outcome, is a terminal error.
func CurationOutcomeRecorder(decisions CurationDecisions) events.EventHandler {
	return events.HandlerOf(func(_ events.Envelope, applied CurationAppliedEvent) (domain.CurationRuling, error) {
		ruling := domain.CurationRuling(applied)
		return ruling, ruling.Validate()
	}, func(ctx context.Context, workspace uuid.NullUUID, ruling domain.CurationRuling) error {
		decision, found, err := decisions.Lock(ctx, workspace, ruling.DecisionID)
		switch {
		case err != nil:
			return err
		case !found:
			return events.Terminal(fmt.Errorf("decision %s is not in platform.curation_decisions of this workspace: store "+
				"the decision in the transaction that publishes it", ruling.DecisionID))
		}
		decision, changed, err := decision.Settle(ruling)
		switch {
		case err != nil:
			return events.Terminal(err)
		case !changed:
			return nil
		}
		return decisions.Save(ctx, workspace, decision)
	})
}
