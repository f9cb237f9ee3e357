package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

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
