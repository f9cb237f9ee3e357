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

// Decisions stores decisions in one transaction.
type Decisions interface {
	// Record stores decision and returns it. If its id is stored already, it returns the stored one, and false.
	Record(ctx context.Context, workspace uuid.NullUUID, decision domain.Decision, at time.Time) (stored domain.Decision,
		recorded bool, err error)
}

// RecordDecision records the decision of a person or an agent about a rule's proposal. The decision and its event
// commit together or not at all. Safe for concurrent use.
type RecordDecision struct {
	Transact UnitOfWork[Decisions]
	Now      func() time.Time
}

// Record stores decision in workspace and publishes decision.recorded. A second call changes nothing, publishes
// nothing and returns false. The error is [domain.ErrDecisionRecorded] if the id has another content.
func (r *RecordDecision) Record(ctx context.Context, workspace uuid.NullUUID,
	decision domain.Decision) (recorded bool, err error) {
	defer wrap(&err, "record decision %s", decision.DecisionID)
	now := r.Now()
	decision.DecidedAt = decision.DecidedAt.UTC().Truncate(time.Microsecond) // as it is stored and published
	if err := decision.Validate(now); err != nil {
		return false, err
	}
	err = r.Transact(ctx, workspace, func(decisions Decisions, publisher events.EventPublisher) error {
		stored, first, err := decisions.Record(ctx, workspace, decision, now)
		if err != nil {
			return err
		}
		if !first && stored != decision {
			return domain.ErrDecisionRecorded
		}
		if !first {
			return nil
		}
		recorded = true
		return publish(ctx, publisher, workspace, now, contracts.DecisionRecordedContract(), contracts.DecisionRecorded{
			DecisionID: decision.DecisionID, RuleID: decision.RuleID, Outcome: string(decision.Outcome),
			OverrideReason: decision.OverrideReason, DecidedBy: decision.DecidedBy, DecidedAt: decision.DecidedAt,
		})
	})
	return recorded, err
}

// CurationDecisions stores curation decisions in one transaction.
type CurationDecisions interface {
	// Add stores a decision as pending and returns its stored time: the decision's own time, or a time after all other
	// decisions about its candidate.
	Add(ctx context.Context, workspace uuid.NullUUID, decision domain.CurationDecision) (decidedAt time.Time, err error)
}

// DecideCuration stores curators' decisions. The decision and its event commit together or not at all. Worlds reports
// the outcome with another event. Safe for concurrent use.
type DecideCuration struct {
	Transact UnitOfWork[CurationDecisions]
	NewID    func() uuid.UUID
	Now      func() time.Time
}

// Decide stores a curator's decision on a rule candidate of workspace as pending, publishes
// platform.curation.decided for worlds, and returns the decision's id.
func (d *DecideCuration) Decide(ctx context.Context, workspace uuid.NullUUID, candidateID uuid.UUID,
	verdict domain.CurationVerdict, note, decidedBy string) (id uuid.UUID, err error) {
	defer wrap(&err, "decide on rule candidate %s", candidateID)
	id, now := d.NewID(), d.Now()
	decision := domain.CurationDecision{
		ID: id, CandidateID: candidateID, Verdict: verdict, Note: note, DecidedBy: decidedBy,
		DecidedAt: now, Outcome: domain.CurationPending,
	}
	if err := decision.Validate(now); err != nil {
		return uuid.Nil, err
	}
	err = d.Transact(ctx, workspace, func(decisions CurationDecisions, publisher events.EventPublisher) error {
		decidedAt, err := decisions.Add(ctx, workspace, decision)
		if err != nil {
			return err
		}
		if decision.DecidedAt = decidedAt; decision.Validate(now) != nil { // worlds would refuse it
			return fmt.Errorf("it has a decision dated %s, in the future: correct that clock, and decide after that time",
				decidedAt.Format(time.RFC3339))
		}
		return publish(ctx, publisher, workspace, now, contracts.CurationDecidedContract(), contracts.CurationDecided{
			DecisionID: id, CandidateID: candidateID, Verdict: string(verdict), Note: note, DecidedBy: decidedBy,
			DecidedAt: decidedAt.UTC(),
		})
	})
	return id, err
}
