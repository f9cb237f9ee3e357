package application

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
)

// RuleCandidates stores rule candidates, and the rulings on decisions about them, in one transaction.
type RuleCandidates interface {
	// Add stores a new candidate, and returns false if its origin has one already.
	Add(ctx context.Context, workspace uuid.NullUUID, candidate domain.RuleCandidate, at time.Time) (added bool, err error)
	// LockOfOrigin returns the candidate of an origin and locks it until the transaction ends. Found is false if there
	// is none.
	LockOfOrigin(ctx context.Context, workspace uuid.NullUUID, origin domain.CandidateOrigin,
		originID uuid.UUID) (candidate domain.RuleCandidate, found bool, err error)
	// Lock returns and locks candidates by their ids, in the order of their origins. Unknown ids are omitted.
	Lock(ctx context.Context, workspace uuid.NullUUID, ids ...uuid.UUID) (map[uuid.UUID]domain.RuleCandidate, error)
	// Save stores a candidate that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, candidate domain.RuleCandidate, at time.Time) error
	// AddRuling stores the ruling on a decision, and returns false if the decision has one already.
	AddRuling(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision, ruling domain.CurationRuling,
		at time.Time) (added bool, err error)
}

// ProposeCandidate proposes a rule or updates its candidate. It is built for the transaction of the event that suggests
// the rule. Now must have the precision of the database, a microsecond. Not safe for concurrent use.
type ProposeCandidate struct {
	Candidates RuleCandidates
	Publisher  events.EventPublisher
	NewID      func() uuid.UUID
	Now        func() time.Time
}

// Propose stores a candidate for each origin of facts and publishes worlds.rule_candidate.proposed, if there is none
// yet. Otherwise it updates the candidate if the facts are newer. In any order of facts, and with duplicates, the
// newest facts win and the event is published once.
func (p *ProposeCandidate) Propose(ctx context.Context, workspace uuid.NullUUID, facts []domain.CandidateFacts) error {
	now := p.Now()
	var proposed []events.Envelope
	for _, f := range domain.NewestFacts(facts) {
		candidate := domain.ProposeRule(p.NewID(), f)
		added, err := p.Candidates.Add(ctx, workspace, candidate, now)
		if err != nil {
			return err
		}
		if added {
			envelope, err := envelopeOf(contracts.RuleCandidateProposedContract(), contracts.RuleCandidateProposed{
				CandidateID: candidate.ID, Origin: string(f.Origin), OriginID: f.OriginID, Statement: f.Statement,
				Occurrences: f.Occurrences, Confidence: f.Confidence, ProposedAt: now,
			}, workspace, now)
			if err != nil {
				return err
			}
			proposed = append(proposed, envelope)
		} else if err := p.observe(ctx, workspace, f, now); err != nil {
			return err
		}
	}
	if len(proposed) == 0 {
		return nil
	}
	return p.Publisher.Publish(ctx, proposed...)
}

func (p *ProposeCandidate) observe(ctx context.Context, workspace uuid.NullUUID, facts domain.CandidateFacts,
	now time.Time) error {
	candidate, found, err := p.Candidates.LockOfOrigin(ctx, workspace, facts.Origin, facts.OriginID)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("the rule candidate of %s %s is neither new nor there", facts.Origin, facts.OriginID)
	}
	if !candidate.Observe(facts) {
		return nil
	}
	return p.Candidates.Save(ctx, workspace, candidate, now)
}

// ApplyDecision applies curation decisions to rule candidates. It is built for the transaction of the decision's event.
// Now must have the precision of the database, a microsecond. Not safe for concurrent use.
type ApplyDecision struct {
	Candidates RuleCandidates
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
		added, err := a.Candidates.AddRuling(ctx, workspace, d, ruling, now)
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
