package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
	"spectral/internal/platform/infrastructure/postgres/platformdb"
)

// CurationDecisions stores curation decisions in the transaction it was built for.
type CurationDecisions struct{ queries *platformdb.Queries }

// NewCurationDecisions returns the repository for tx.
func NewCurationDecisions(tx events.Tx) *CurationDecisions {
	return &CurationDecisions{queries: platformdb.New(tx)}
}

// Add implements [application.CurationDecisions].
func (c *CurationDecisions) Add(ctx context.Context, workspace uuid.NullUUID,
	d domain.CurationDecision) (time.Time, error) {
	decidedAt, err := c.queries.AddCurationDecision(ctx, platformdb.AddCurationDecisionParams{
		DecisionID: d.ID, WorkspaceID: workspace, CandidateID: d.CandidateID, Verdict: string(d.Verdict), Note: d.Note,
		DecidedBy: d.DecidedBy, DecidedAt: d.DecidedAt,
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("store a curation decision: %w", err)
	}
	return decidedAt, nil
}

// Lock returns a decision and locks it until the transaction ends. Found is false if there is none.
func (c *CurationDecisions) Lock(ctx context.Context, workspace uuid.NullUUID,
	id uuid.UUID) (decision domain.CurationDecision, found bool, err error) {
	row, err := c.queries.LockCurationDecision(ctx,
		platformdb.LockCurationDecisionParams{WorkspaceID: workspace, DecisionID: id})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.CurationDecision{}, false, nil
	}
	if err != nil {
		return domain.CurationDecision{}, false, fmt.Errorf("read curation decision %s: %w", id, err)
	}
	return domain.CurationDecision{
		ID: id, CandidateID: row.CandidateID, Verdict: domain.CurationVerdict(row.Verdict), Note: row.Note,
		DecidedBy: row.DecidedBy,
		DecidedAt: row.DecidedAt, Outcome: domain.CurationOutcome(row.Outcome), Reason: text(row.OutcomeReason),
		RuledAt: row.OutcomeAt.Time,
	}, true, nil
}

// Save stores the outcome of a decision that was locked in this transaction.
func (c *CurationDecisions) Save(ctx context.Context, workspace uuid.NullUUID, d domain.CurationDecision) error {
	n, err := c.queries.SaveCurationOutcome(ctx, platformdb.SaveCurationOutcomeParams{
		WorkspaceID: workspace, DecisionID: d.ID, Outcome: string(d.Outcome), OutcomeReason: textOrNull(d.Reason),
		OutcomeAt: timeOrNull(d.RuledAt),
	})
	if err != nil {
		return fmt.Errorf("store the outcome of curation decision %s: %w", d.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("store the outcome of curation decision %s: it is not there", d.ID)
	}
	return nil
}
