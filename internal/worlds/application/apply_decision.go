package application

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
)

// CurationRulings remembers what became of each decision, in one transaction.
type CurationRulings interface {
	// Add stores the ruling on a decision, unless it has one already: then it reports false.
	Add(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision, ruling domain.CurationRuling, at time.Time) (added bool, err error)
}

// ApplyDecision applies curation decisions to rule candidates. It is built for the transaction of the event that
// brings the decision. Not safe for concurrent use.
type ApplyDecision struct {
	candidates RuleCandidates
	rulings    CurationRulings
	publisher  events.EventPublisher
	now        func() time.Time
}

// NewApplyDecision composes the use case for one transaction, which candidates, rulings and publisher are bound to. Now is
// to the microsecond, as the database keeps it.
func NewApplyDecision(candidates RuleCandidates, rulings CurationRulings, publisher events.EventPublisher, now func() time.Time) *ApplyDecision {
	return &ApplyDecision{candidates: candidates, rulings: rulings, publisher: publisher, now: now}
}

// Apply rules on decisions in the order of their times, follows them and publishes worlds.curation.applied for each, which
// tells platform. A decision that was ruled on before changes nothing and publishes nothing: the stored ruling sees to it,
// for longer than deliveries are remembered.
func (a *ApplyDecision) Apply(ctx context.Context, workspace uuid.NullUUID, decisions []domain.CurationDecision) error {
	ids := make([]uuid.UUID, len(decisions))
	for i, d := range decisions {
		ids[i] = d.CandidateID
	}
	candidates, err := a.candidates.Lock(ctx, workspace, ids...)
	if err != nil {
		return err
	}
	now := a.now()
	changed := make(map[uuid.UUID]bool)
	var applied []events.Envelope
	for _, d := range slices.SortedFunc(slices.Values(decisions), domain.CurationDecision.Compare) {
		candidate, found := candidates[d.CandidateID]
		ruling := domain.RefuseUnknown()
		if found {
			ruling = candidate.Decide(d)
		}
		added, err := a.rulings.Add(ctx, workspace, d, ruling, now)
		if err != nil {
			return err
		}
		if !added {
			continue
		}
		if ruling.Outcome == domain.CurationApplied {
			candidates[d.CandidateID], changed[d.CandidateID] = candidate, true
		}
		envelope, err := envelopeOf(contracts.CurationAppliedContract(), contracts.CurationApplied{
			DecisionID: d.ID, CandidateID: d.CandidateID, Outcome: string(ruling.Outcome), Reason: ruling.Reason, AppliedAt: now,
		}, workspace, now)
		if err != nil {
			return err
		}
		applied = append(applied, envelope)
	}
	for id := range changed {
		if err := a.candidates.Save(ctx, workspace, candidates[id], now); err != nil {
			return err
		}
	}
	if len(applied) == 0 {
		return nil
	}
	return a.publisher.Publish(ctx, applied...)
}
