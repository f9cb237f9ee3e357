package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

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
			Occurrences: row.Occurrences, Kinds: row.Kinds, Confidence: row.Confidence,
		},
		State: domain.CandidateState(row.State), DecisionID: row.DecisionID, DecidedAt: time.Time(row.DecidedAt),
	}
}

// Save implements [application.RuleCandidates].
func (r *RuleCandidates) Save(ctx context.Context, workspace uuid.NullUUID, c domain.RuleCandidate,
	at time.Time) error {
	return r.queries.SaveRuleCandidate(ctx, worldsdb.SaveRuleCandidateParams{
		WorkspaceID: workspace, CandidateID: c.ID, Revision: c.Revision, Statement: c.Statement, Occurrences: c.Occurrences,
		Kinds: c.Kinds, Confidence: c.Confidence, State: string(c.State), DecisionID: c.DecisionID,
		DecidedAt: zeronull.Timestamptz(c.DecidedAt), UpdatedAt: at,
	})
}

// CurationRulings stores the outcomes of curation decisions in the transaction it was built for.
type CurationRulings struct{ queries *worldsdb.Queries }

// NewCurationRulings returns the repository for tx.
func NewCurationRulings(tx events.Tx) *CurationRulings {
	return &CurationRulings{queries: worldsdb.New(tx)}
}

// Add implements [application.CurationRulings]. A second transaction that rules on the same decision waits.
func (r *CurationRulings) Add(ctx context.Context, workspace uuid.NullUUID, d domain.CurationDecision,
	ruling domain.CurationRuling, at time.Time) (bool, error) {
	n, err := r.queries.AddCurationRuling(ctx, worldsdb.AddCurationRulingParams{
		WorkspaceID: workspace, DecisionID: d.ID, CandidateID: d.CandidateID, Outcome: string(ruling.Outcome),
		Reason: zeronull.Text(ruling.Reason), RuledAt: at,
	})
	return n == 1, err
}
