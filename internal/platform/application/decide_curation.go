package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
)

// CurationDecisions stores curation decisions in one transaction.
type CurationDecisions interface {
	// Add stores a decision as pending, and returns the time under which it is: that of the decision, or one later
	// than every earlier decision's on its candidate.
	Add(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision) (decidedAt time.Time, err error)
}

// DecideCuration takes curators' decisions: the decision and the event that says so commit together or not at all.
// What worlds makes of it comes back by an event of its own. Safe for concurrent use.
type DecideCuration struct {
	transact UnitOfWork[CurationDecisions]
	newID    func() uuid.UUID
	now      func() time.Time
}

// NewDecideCuration composes the use case.
func NewDecideCuration(transact UnitOfWork[CurationDecisions], newID func() uuid.UUID, now func() time.Time) *DecideCuration {
	return &DecideCuration{transact: transact, newID: newID, now: now}
}

// Decide stores a curator's decision on a rule candidate of workspace as pending, publishes
// platform.curation.decided for worlds, and returns the decision's id.
func (d *DecideCuration) Decide(ctx context.Context, workspace uuid.NullUUID, candidateID uuid.UUID, verdict domain.CurationVerdict, note, decidedBy string) (uuid.UUID, error) {
	now := d.now()
	id := d.newID()
	decision := domain.CurationDecision{
		ID: id, CandidateID: candidateID, Verdict: verdict, Note: note, DecidedBy: decidedBy,
		DecidedAt: now, Outcome: domain.CurationPending,
	}
	if err := decision.Validate(now); err != nil {
		return uuid.Nil, fmt.Errorf("decide on rule candidate %s: %w", candidateID, err)
	}
	err := d.transact(ctx, workspace, func(decisions CurationDecisions, publisher events.EventPublisher) error {
		decidedAt, err := decisions.Add(ctx, workspace, decision)
		if err != nil {
			return err
		}
		if decision.DecidedAt = decidedAt; decision.Validate(now) != nil { // which worlds would not take
			return fmt.Errorf("an earlier decision on it is dated %s, which is still to come: correct the clock of whoever took it, and decide after that time",
				decidedAt.Format(time.RFC3339))
		}
		return publish(ctx, publisher, workspace, now, contracts.CurationDecidedContract(), contracts.CurationDecided{
			DecisionID: id, CandidateID: candidateID, Verdict: string(verdict), Note: note, DecidedBy: decidedBy, DecidedAt: decidedAt.UTC(),
		})
	})
	if err != nil {
		return uuid.Nil, fmt.Errorf("decide on rule candidate %s: %w", candidateID, err)
	}
	return id, nil
}
