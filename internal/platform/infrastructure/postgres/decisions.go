package postgres

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
			OverrideReason: string(row.OverrideReason),
		},
		DecidedBy: row.DecidedBy, DecidedAt: row.DecidedAt.UTC(),
	}, false, err
}

// OverridePatterns stores override patterns in the transaction it was built for.
type OverridePatterns struct{ queries *platformdb.Queries }

// NewOverridePatterns returns the repository for tx.
func NewOverridePatterns(tx events.Tx) *OverridePatterns {
	return &OverridePatterns{queries: platformdb.New(tx)}
}

// Count adds rulings to the patterns of their rules, except those that were counted before. It locks rows in the order
// of their keys, so concurrent calls do not deadlock.
func (o *OverridePatterns) Count(ctx context.Context, workspace uuid.NullUUID, rulings []domain.Ruling) error {
	byID := make(map[uuid.UUID]domain.Ruling, len(rulings)) // of duplicates the first counts
	for _, r := range slices.Backward(rulings) {
		byID[r.DecisionID] = r
	}
	uncounted, err := o.queries.RememberDecisions(ctx, platformdb.RememberDecisionsParams{
		WorkspaceID: workspace, DecisionIds: slices.Collect(maps.Keys(byID)),
	})
	fresh := make([]domain.Ruling, len(uncounted))
	for i, id := range uncounted {
		fresh[i] = byID[id]
	}
	for _, p := range domain.PatternsOf(fresh) {
		if err := o.add(ctx, workspace, p); err != nil {
			return err
		}
	}
	return err
}

func (o *OverridePatterns) add(ctx context.Context, workspace uuid.NullUUID, p domain.OverridePattern) error {
	err := o.queries.AddToPattern(ctx, platformdb.AddToPatternParams{
		WorkspaceID: workspace, RuleID: p.RuleID, Followed: p.Followed, Overridden: p.Overridden,
	})
	for i := 0; i < len(p.Reasons) && err == nil; i++ {
		r := p.Reasons[i]
		err = o.queries.AddToReason(ctx, platformdb.AddToReasonParams{
			WorkspaceID: workspace, RuleID: p.RuleID, Reason: r.Reason, Overridden: r.Overridden,
		})
	}
	return err
}

// Of returns the pattern of a rule with the most common reason first, or the zero value if nothing was decided yet.
func (o *OverridePatterns) Of(ctx context.Context, workspace uuid.NullUUID,
	ruleID string) (domain.OverridePattern, error) {
	row, err := o.queries.GetPattern(ctx, platformdb.GetPatternParams{RuleID: ruleID, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.OverridePattern{}, nil
	}
	if err != nil {
		return domain.OverridePattern{}, err
	}
	p := domain.OverridePattern{RuleID: ruleID, Followed: row.Followed, Overridden: row.Overridden}
	reasons, err := o.queries.ListReasons(ctx, platformdb.ListReasonsParams{RuleID: ruleID, WorkspaceID: workspace})
	for _, r := range reasons {
		p.Reasons = append(p.Reasons, domain.OverrideReason(r))
	}
	return p, err
}
