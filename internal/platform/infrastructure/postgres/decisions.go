package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

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
		OverrideReason: textOrNull(decision.OverrideReason), DecidedBy: decision.DecidedBy, DecidedAt: decision.DecidedAt,
		RecordedAt: at,
	})
	if err != nil {
		return domain.Decision{}, false, fmt.Errorf("store decision %s: %w", decision.DecisionID, err)
	}
	if n == 1 {
		return decision, true, nil
	}
	row, err := d.queries.GetDecision(ctx, platformdb.GetDecisionParams{WorkspaceID: workspace,
		DecisionID: decision.DecisionID})
	if err != nil {
		return domain.Decision{}, false, fmt.Errorf("read decision %s: %w", decision.DecisionID, err)
	}
	return domain.Decision{
		Ruling: domain.Ruling{
			DecisionID: decision.DecisionID, RuleID: row.RuleID, Outcome: domain.Outcome(row.Outcome),
			OverrideReason: text(row.OverrideReason), DecidedAt: row.DecidedAt,
		},
		DecidedBy: row.DecidedBy,
	}, false, nil
}
