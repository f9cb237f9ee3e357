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
	// Lock is LockOfOrigin by the candidate's own id.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (candidate domain.RuleCandidate, found bool, err error)
	// Put stores a candidate that was locked in this transaction.
	Put(ctx context.Context, workspace uuid.NullUUID, candidate domain.RuleCandidate, at time.Time) error
}

// ProposeCandidate proposes a rule, or brings its candidate up to date. It is built for the transaction of the
// event that suggests it. Not safe for concurrent use.
type ProposeCandidate struct {
	candidates RuleCandidates
	publisher  events.EventPublisher
	newID      func() (uuid.UUID, error)
	now        func() time.Time
}

// NewProposeCandidate composes the use case for one transaction, which both candidates and publisher are bound to.
func NewProposeCandidate(candidates RuleCandidates, publisher events.EventPublisher, newID func() (uuid.UUID, error), now func() time.Time) *ProposeCandidate {
	return &ProposeCandidate{candidates: candidates, publisher: publisher, newID: newID, now: now}
}

// Propose stores a candidate for the origin of facts and publishes worlds.rule_candidate.proposed, if there is none
// yet. Otherwise the candidate takes the facts in if they are newer than its own. In whatever order facts come, and
// however often, the newest stand in the end and the event is published once.
func (p *ProposeCandidate) Propose(ctx context.Context, workspace uuid.NullUUID, facts domain.CandidateFacts) error {
	id, err := p.newID()
	if err != nil {
		return fmt.Errorf("make a candidate id: %w", err)
	}
	now := p.now().Truncate(time.Microsecond) // as the database keeps it
	candidate := domain.ProposeRule(id, facts)
	added, err := p.candidates.Add(ctx, workspace, candidate, now)
	if err != nil {
		return err
	}
	if added {
		return p.publish(ctx, workspace, candidate, now)
	}
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
	return p.candidates.Put(ctx, workspace, candidate, now)
}

func (p *ProposeCandidate) publish(ctx context.Context, workspace uuid.NullUUID, c domain.RuleCandidate, now time.Time) error {
	envelope, err := events.NewEnvelope(contracts.RuleCandidateProposedContract(), contracts.RuleCandidateProposed{
		CandidateID: c.ID, Origin: string(c.Origin), OriginID: c.OriginID, Statement: c.Statement,
		Occurrences: c.Occurrences, Confidence: c.Confidence, ProposedAt: now.UTC(),
	})
	if err != nil {
		return err
	}
	envelope.WorkspaceID, envelope.OccurredAt = workspace, now
	return p.publisher.Publish(ctx, envelope)
}
