package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
	"spectral/internal/platform/infrastructure/postgres/platformdb"
)

// Decisions stores decisions in the transaction it was built for.
type Decisions struct{ queries *platformdb.Queries }

// NewDecisions returns the repository for tx.
func NewDecisions(tx events.Tx) *Decisions { return &Decisions{queries: platformdb.New(tx)} }

// Record implements [application.Decisions]. A second transaction that records the same decision waits.
func (d *Decisions) Record(ctx context.Context, workspace uuid.NullUUID, decision domain.Decision,
	at time.Time) (stored domain.Decision, recorded bool, err error) {
	n, err := d.queries.InsertDecision(ctx, platformdb.InsertDecisionParams{
		WorkspaceID: workspace, DecisionID: decision.DecisionID, RuleID: decision.RuleID, Outcome: string(decision.Outcome),
		OverrideReason: zeronull.Text(decision.OverrideReason), DecidedBy: decision.DecidedBy, DecidedAt: decision.DecidedAt,
		RecordedAt: at,
	})
	if err != nil || n == 1 {
		return decision, n == 1, err
	}
	row, err := d.queries.GetDecision(ctx, platformdb.GetDecisionParams{WorkspaceID: workspace,
		DecisionID: decision.DecisionID})
	return domain.Decision{
		Ruling: domain.Ruling{
			DecisionID: decision.DecisionID, RuleID: row.RuleID, Outcome: domain.Outcome(row.Outcome),
			OverrideReason: string(row.OverrideReason), DecidedAt: row.DecidedAt,
		},
		DecidedBy: row.DecidedBy,
	}, false, err
}
