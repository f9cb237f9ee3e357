package postgres

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

// RuleHealth stores the health of rules in the transaction it was built for.
type RuleHealth struct{ queries *worldsdb.Queries }

// NewRuleHealth returns the repository for tx.
func NewRuleHealth(tx events.Tx) *RuleHealth { return &RuleHealth{queries: worldsdb.New(tx)} }

// Count adds decisions to the health of their rules, except those that were counted before. It locks rows in the order
// of their keys, so concurrent calls do not deadlock.
func (r *RuleHealth) Count(ctx context.Context, workspace uuid.NullUUID, decisions []domain.RuleDecision) error {
	byID := make(map[uuid.UUID]domain.RuleDecision, len(decisions)) // of duplicates the first counts
	for _, d := range slices.Backward(decisions) {
		byID[d.DecisionID] = d
	}
	uncounted, err := r.queries.RememberDecisions(ctx, worldsdb.RememberDecisionsParams{
		WorkspaceID: workspace, DecisionIds: slices.Collect(maps.Keys(byID)),
	})
	fresh := make([]domain.RuleDecision, len(uncounted))
	for i, id := range uncounted {
		fresh[i] = byID[id]
	}
	for _, h := range domain.HealthOf(fresh) {
		if err := r.add(ctx, workspace, h); err != nil {
			return err
		}
	}
	return err
}

func (r *RuleHealth) add(ctx context.Context, workspace uuid.NullUUID, more domain.RuleHealth) error {
	row, err := r.queries.AddToHealth(ctx, worldsdb.AddToHealthParams{
		WorkspaceID: workspace, RuleID: more.RuleID, Followed: more.Followed, Overridden: more.Overridden,
		State: string(more.State()), LastDecidedAt: more.LastDecidedAt,
	})
	state := string(domain.RuleHealth{RuleID: more.RuleID, Followed: row.Followed, Overridden: row.Overridden}.State())
	if err != nil || state == row.State {
		return err
	}
	return r.queries.RateRule(ctx, worldsdb.RateRuleParams{WorkspaceID: workspace, RuleID: more.RuleID, State: state})
}

// Of returns the health of a rule, or the zero value if nothing was decided yet.
func (r *RuleHealth) Of(ctx context.Context, workspace uuid.NullUUID, ruleID string) (domain.RuleHealth, error) {
	row, err := r.queries.GetHealth(ctx, worldsdb.GetHealthParams{RuleID: ruleID, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.RuleHealth{}, nil
	}
	return domain.RuleHealth{RuleID: ruleID, Followed: row.Followed, Overridden: row.Overridden,
		LastDecidedAt: row.LastDecidedAt}, err
}
