package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
)

// RuleCandidates stores rule candidates in one transaction.
type RuleCandidates interface {
	// Add stores a new candidate, unless its origin has one already: then it reports false.
	Add(ctx context.Context, workspace uuid.NullUUID, candidate domain.RuleCandidate, at time.Time) (added bool, err error)
	// LockOfOrigin returns the candidate of an origin, which nobody else can change until the transaction ends;
	// found is false if there is none.
	LockOfOrigin(ctx context.Context, workspace uuid.NullUUID, origin domain.CandidateOrigin, originID uuid.UUID) (candidate domain.RuleCandidate, found bool, err error)
	// Lock is LockOfOrigin of several candidates by their own ids, in the order of their origins. Those that are not there
	// are left out.
	Lock(ctx context.Context, workspace uuid.NullUUID, ids ...uuid.UUID) (map[uuid.UUID]domain.RuleCandidate, error)
	// Save stores a candidate that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, candidate domain.RuleCandidate, at time.Time) error
}

// ProposeCandidate proposes a rule, or brings its candidate up to date. It is built for the transaction of the
// event that suggests it. Not safe for concurrent use.
type ProposeCandidate struct {
	candidates RuleCandidates
	publisher  events.EventPublisher
	newID      func() uuid.UUID
	now        func() time.Time
}

// NewProposeCandidate composes the use case for one transaction, which both candidates and publisher are bound to. Now is to
// the microsecond, as the database keeps it.
func NewProposeCandidate(candidates RuleCandidates, publisher events.EventPublisher, newID func() uuid.UUID, now func() time.Time) *ProposeCandidate {
	return &ProposeCandidate{candidates: candidates, publisher: publisher, newID: newID, now: now}
}

// Propose stores a candidate for each origin of facts and publishes worlds.rule_candidate.proposed, if there is none
// yet. Otherwise the candidate takes the facts in if they are newer than its own. In whatever order facts come, and
// however often, the newest stand in the end and the event is published once.
func (p *ProposeCandidate) Propose(ctx context.Context, workspace uuid.NullUUID, facts []domain.CandidateFacts) error {
	now := p.now()
	var proposed []events.Envelope
	for _, f := range domain.NewestFacts(facts) {
		candidate := domain.ProposeRule(p.newID(), f)
		added, err := p.candidates.Add(ctx, workspace, candidate, now)
		if err != nil {
			return err
		}
		if added {
			envelope, err := proposal(workspace, candidate, now)
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
	return p.publisher.Publish(ctx, proposed...)
}

func (p *ProposeCandidate) observe(ctx context.Context, workspace uuid.NullUUID, facts domain.CandidateFacts, now time.Time) error {
	candidate, found, err := p.candidates.LockOfOrigin(ctx, workspace, facts.Origin, facts.OriginID)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("the rule candidate of %s %s is neither new nor there", facts.Origin, facts.OriginID)
	}
	if !candidate.Observe(facts) {
		return nil
	}
	return p.candidates.Save(ctx, workspace, candidate, now)
}

func proposal(workspace uuid.NullUUID, c domain.RuleCandidate, now time.Time) (events.Envelope, error) {
	return envelopeOf(contracts.RuleCandidateProposedContract(), contracts.RuleCandidateProposed{
		CandidateID: c.ID, Origin: string(c.Origin), OriginID: c.OriginID, Statement: c.Statement,
		Occurrences: c.Occurrences, Confidence: c.Confidence, ProposedAt: now,
	}, workspace, now)
}
