package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

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
	return c.queries.AddCurationDecision(ctx, platformdb.AddCurationDecisionParams{
		DecisionID: d.ID, WorkspaceID: workspace, CandidateID: d.CandidateID, Verdict: string(d.Verdict), Note: d.Note,
		DecidedBy: d.DecidedBy, DecidedAt: d.DecidedAt,
	})
}

// Lock returns a decision and locks it until the transaction ends. Found is false if there is none.
func (c *CurationDecisions) Lock(ctx context.Context, workspace uuid.NullUUID,
	id uuid.UUID) (decision domain.CurationDecision, found bool, err error) {
	row, err := c.queries.LockCurationDecision(ctx,
		platformdb.LockCurationDecisionParams{WorkspaceID: workspace, DecisionID: id})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.CurationDecision{}, false, nil
	}
	return domain.CurationDecision{
		ID: id, CandidateID: row.CandidateID, Verdict: domain.CurationVerdict(row.Verdict), Note: row.Note,
		DecidedBy: row.DecidedBy, DecidedAt: row.DecidedAt, Outcome: domain.CurationOutcome(row.Outcome),
		Reason: string(row.OutcomeReason), RuledAt: time.Time(row.OutcomeAt),
	}, err == nil, err
}

// Save stores the outcome of a decision that was locked in this transaction.
func (c *CurationDecisions) Save(ctx context.Context, workspace uuid.NullUUID, d domain.CurationDecision) error {
	return c.queries.SaveCurationOutcome(ctx, platformdb.SaveCurationOutcomeParams{
		WorkspaceID: workspace, DecisionID: d.ID, Outcome: string(d.Outcome), OutcomeReason: zeronull.Text(d.Reason),
		OutcomeAt: zeronull.Timestamptz(d.RuledAt),
	})
}
