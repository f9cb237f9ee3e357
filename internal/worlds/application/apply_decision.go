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

// CurationRulings stores the outcome of each decision, in one transaction.
type CurationRulings interface {
	// Add stores the ruling on a decision, and returns false if the decision has one already.
	Add(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision, ruling domain.CurationRuling,
		at time.Time) (added bool, err error)
}

// ApplyDecision applies curation decisions to rule candidates. It is built for the transaction of the decision's event.
// Now must have the precision of the database, a microsecond. Not safe for concurrent use.
type ApplyDecision struct {
	Candidates RuleCandidates
	Rulings    CurationRulings
	Publisher  events.EventPublisher
	Now        func() time.Time
}

// Apply applies decisions in the order of their times and publishes worlds.curation.applied for each. A decision with a
// stored ruling changes nothing and publishes nothing, even after its dedup key was deleted.
func (a *ApplyDecision) Apply(ctx context.Context, workspace uuid.NullUUID, decisions []domain.CurationDecision) error {
	ids := make([]uuid.UUID, len(decisions))
	for i, d := range decisions {
		ids[i] = d.CandidateID
	}
	candidates, err := a.Candidates.Lock(ctx, workspace, ids...)
	if err != nil {
		return err
	}
	now := a.Now()
	changed := make(map[uuid.UUID]bool)
	var applied []events.Envelope
	for _, d := range slices.SortedFunc(slices.Values(decisions), domain.CurationDecision.Compare) {
		candidate, found := candidates[d.CandidateID]
		ruling := domain.RefuseUnknown()
		if found {
			ruling = candidate.Decide(d)
		}
		added, err := a.Rulings.Add(ctx, workspace, d, ruling, now)
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
		if err := a.Candidates.Save(ctx, workspace, candidates[id], now); err != nil {
			return err
		}
	}
	if len(applied) == 0 {
		return nil
	}
	return a.Publisher.Publish(ctx, applied...)
}
