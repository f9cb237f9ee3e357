package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

// RuleCandidates stores rule candidates in the transaction it was built for.
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
		Statement: c.Statement, Occurrences: c.Occurrences, Kinds: c.Kinds, Confidence: c.Confidence, ProposedAt: at,
	})
	if err != nil {
		return false, fmt.Errorf("add a rule candidate of %s %s: %w", c.Origin, c.OriginID, err)
	}
	return n == 1, nil
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
	if err != nil {
		return domain.RuleCandidate{}, false, fmt.Errorf("read the rule candidate of %s %s: %w", origin, originID, err)
	}
	return candidateOf(row), true, nil
}

// Lock implements [application.RuleCandidates].
func (r *RuleCandidates) Lock(ctx context.Context, workspace uuid.NullUUID,
	ids ...uuid.UUID) (map[uuid.UUID]domain.RuleCandidate, error) {
	rows, err := r.queries.LockRuleCandidates(ctx,
		worldsdb.LockRuleCandidatesParams{WorkspaceID: workspace, CandidateIds: ids})
	if err != nil {
		return nil, fmt.Errorf("read %d rule candidates: %w", len(ids), err)
	}
	candidates := make(map[uuid.UUID]domain.RuleCandidate, len(rows))
	for _, row := range rows {
		candidates[row.CandidateID] = candidateOf(worldsdb.LockRuleCandidateOfOriginRow(row))
	}
	return candidates, nil
}

func candidateOf(row worldsdb.LockRuleCandidateOfOriginRow) domain.RuleCandidate {
	return domain.RuleCandidate{
		ID: row.CandidateID,
		CandidateFacts: domain.CandidateFacts{
			Origin: domain.CandidateOrigin(row.Origin), OriginID: row.OriginID, Revision: row.Revision, Statement: row.Statement,
			Occurrences: row.Occurrences, Kinds: row.Kinds, Confidence: row.Confidence,
		},
		State: domain.CandidateState(row.State), DecisionID: row.DecisionID, DecidedAt: row.DecidedAt.Time,
	}
}

// Save implements [application.RuleCandidates].
func (r *RuleCandidates) Save(ctx context.Context, workspace uuid.NullUUID, c domain.RuleCandidate,
	at time.Time) error {
	n, err := r.queries.SaveRuleCandidate(ctx, worldsdb.SaveRuleCandidateParams{
		WorkspaceID: workspace, CandidateID: c.ID, Revision: c.Revision, Statement: c.Statement, Occurrences: c.Occurrences,
		Kinds: c.Kinds, Confidence: c.Confidence, State: string(c.State), DecisionID: c.DecisionID,
		DecidedAt: timeOrNull(c.DecidedAt), UpdatedAt: at,
	})
	if err != nil {
		return fmt.Errorf("store rule candidate %s: %w", c.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("store rule candidate %s: it is not there", c.ID)
	}
	return nil
}
