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
	"spectral/internal/worlds/domain"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

// RuleCandidates stores rule candidates, and the rulings on decisions about them, in the transaction it was built for.
type RuleCandidates struct{ queries *worldsdb.Queries }

// NewRuleCandidates returns the repository for tx.
func NewRuleCandidates(tx events.Tx) *RuleCandidates {
	return &RuleCandidates{queries: worldsdb.New(tx)}
}

// Add implements [application.RuleCandidates]. A second transaction that adds a candidate for the same origin
// waits.
func (r *RuleCandidates) Add(ctx context.Context, workspace uuid.NullUUID, c domain.RuleCandidate,
	at time.Time) (bool, error) {
	n, err := r.queries.AddRuleCandidate(ctx, worldsdb.AddRuleCandidateParams{
		CandidateID: c.ID, WorkspaceID: workspace, Origin: string(c.Origin), OriginID: c.OriginID, Revision: c.Revision,
		Statement: c.Statement, Occurrences: c.Occurrences, Confidence: c.Confidence, ProposedAt: at,
	})
	return n == 1, err
}

// LockOfOrigin implements [application.RuleCandidates].
func (r *RuleCandidates) LockOfOrigin(ctx context.Context, workspace uuid.NullUUID, origin domain.CandidateOrigin,
	originID uuid.UUID) (domain.RuleCandidate, bool, error) {
	row, err := r.queries.LockRuleCandidateOfOrigin(ctx, worldsdb.LockRuleCandidateOfOriginParams{
		WorkspaceID: workspace, Origin: string(origin), OriginID: originID,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.RuleCandidate{}, false, nil
	}
	return candidateOf(row), err == nil, err
}

// Lock implements [application.RuleCandidates].
func (r *RuleCandidates) Lock(ctx context.Context, workspace uuid.NullUUID,
	ids ...uuid.UUID) (map[uuid.UUID]domain.RuleCandidate, error) {
	rows, err := r.queries.LockRuleCandidates(ctx,
		worldsdb.LockRuleCandidatesParams{WorkspaceID: workspace, CandidateIds: ids})
	candidates := make(map[uuid.UUID]domain.RuleCandidate, len(rows))
	for _, row := range rows {
		candidates[row.CandidateID] = candidateOf(worldsdb.LockRuleCandidateOfOriginRow(row))
	}
	return candidates, err
}

func candidateOf(row worldsdb.LockRuleCandidateOfOriginRow) domain.RuleCandidate {
	return domain.RuleCandidate{
		ID: row.CandidateID,
		CandidateFacts: domain.CandidateFacts{
			Origin: domain.CandidateOrigin(row.Origin), OriginID: row.OriginID, Revision: row.Revision, Statement: row.Statement,
			Occurrences: row.Occurrences, Confidence: row.Confidence,
		},
		State: domain.CandidateState(row.State), DecisionID: row.DecisionID, DecidedAt: time.Time(row.DecidedAt),
	}
}

// Save implements [application.RuleCandidates].
func (r *RuleCandidates) Save(ctx context.Context, workspace uuid.NullUUID, c domain.RuleCandidate,
	at time.Time) error {
	return r.queries.SaveRuleCandidate(ctx, worldsdb.SaveRuleCandidateParams{
		WorkspaceID: workspace, CandidateID: c.ID, Revision: c.Revision, Statement: c.Statement, Occurrences: c.Occurrences,
		Confidence: c.Confidence, State: string(c.State), DecisionID: c.DecisionID,
		DecidedAt: zeronull.Timestamptz(c.DecidedAt), UpdatedAt: at,
	})
}

// AddRuling implements [application.RuleCandidates]. A second transaction that rules on the same decision waits.
func (r *RuleCandidates) AddRuling(ctx context.Context, workspace uuid.NullUUID, d domain.CurationDecision,
	ruling domain.CurationRuling, at time.Time) (bool, error) {
	n, err := r.queries.AddCurationRuling(ctx, worldsdb.AddCurationRulingParams{
		WorkspaceID: workspace, DecisionID: d.ID, CandidateID: d.CandidateID, Outcome: string(ruling.Outcome),
		Reason: zeronull.Text(ruling.Reason), RuledAt: at,
	})
	return n == 1, err
}

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
		err = r.queries.AddToHealth(ctx, worldsdb.AddToHealthParams{
			WorkspaceID: workspace, RuleID: h.RuleID, Followed: h.Followed, Overridden: h.Overridden,
		})
		if err != nil {
			return err
		}
	}
	return err
}

// Of returns the health of a rule, or the zero value if nothing was decided yet.
func (r *RuleHealth) Of(ctx context.Context, workspace uuid.NullUUID, ruleID string) (domain.RuleHealth, error) {
	row, err := r.queries.GetHealth(ctx, worldsdb.GetHealthParams{RuleID: ruleID, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.RuleHealth{}, nil
	}
	return domain.RuleHealth{RuleID: ruleID, Followed: row.Followed, Overridden: row.Overridden}, err
}
