package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"spectral/internal/core/events"
	"spectral/internal/platform/application"
	"spectral/internal/platform/domain"
	"spectral/internal/platform/infrastructure/postgres/platformdb"
)

// FailureClusters stores failure clusters in the transaction it was built for.
type FailureClusters struct{ queries *platformdb.Queries }

// NewFailureClusters returns the repository for tx.
func NewFailureClusters(tx events.Tx) *FailureClusters {
	return &FailureClusters{queries: platformdb.New(tx)}
}

// Add implements [application.FailureClusters]. A second transaction that adds a cluster of the same signature
// waits.
func (f *FailureClusters) Add(ctx context.Context, workspace uuid.NullUUID, c domain.FailureCluster) (bool, error) {
	n, err := f.queries.AddFailureCluster(ctx, platformdb.AddFailureClusterParams{
		ClusterID: c.ID, WorkspaceID: workspace, Component: c.Signature.Component, Operation: c.Signature.Operation,
		ErrorClass: c.Signature.ErrorClass, Revision: c.Revision, Failures: c.Failures, FailureCount: c.Count(),
		Severity: string(c.Severity()), FirstSeenAt: c.FirstSeenAt, LastSeenAt: c.LastSeenAt,
	})
	return n == 1, err
}

// Lock implements [application.FailureClusters].
func (f *FailureClusters) Lock(ctx context.Context, workspace uuid.NullUUID,
	signature domain.FailureSignature) (domain.FailureCluster, error) {
	row, err := f.queries.LockFailureCluster(ctx, platformdb.LockFailureClusterParams{
		WorkspaceID: workspace, Component: signature.Component, Operation: signature.Operation,
		ErrorClass: signature.ErrorClass,
	})
	return domain.FailureCluster{
		ID: row.ClusterID, Signature: signature, Revision: row.Revision, Failures: row.Failures,
		FirstSeenAt: row.FirstSeenAt, LastSeenAt: row.LastSeenAt,
	}, err
}

// Save implements [application.FailureClusters].
func (f *FailureClusters) Save(ctx context.Context, workspace uuid.NullUUID, c domain.FailureCluster) error {
	return f.queries.SaveFailureCluster(ctx, platformdb.SaveFailureClusterParams{
		WorkspaceID: workspace, ClusterID: c.ID, Revision: c.Revision, Failures: c.Failures, FailureCount: c.Count(),
		Severity: string(c.Severity()), FirstSeenAt: c.FirstSeenAt, LastSeenAt: c.LastSeenAt,
	})
}

// Memories stores memories in the transaction it was built for.
type Memories struct{ queries *platformdb.Queries }

// NewMemories returns the repository for tx.
func NewMemories(tx events.Tx) *Memories { return &Memories{queries: platformdb.New(tx)} }

// Record implements [application.Memories].
func (m *Memories) Record(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, scope domain.MemoryScope,
	statement string, at time.Time) (uuid.UUID, error) {
	return m.queries.RecordMemory(ctx, platformdb.RecordMemoryParams{
		MemoryID: id, WorkspaceID: workspace, Scope: string(scope), Statement: statement, RecordedAt: at,
	})
}

// Lock implements [application.Memories].
func (m *Memories) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Memory, error) {
	row, err := m.queries.LockMemory(ctx, platformdb.LockMemoryParams{WorkspaceID: workspace, MemoryID: id})
	if errors.Is(err, pgx.ErrNoRows) {
		err = application.ErrNoMemory
	}
	return domain.Memory{
		ID: id, Scope: domain.MemoryScope(row.Scope), Statement: row.Statement, Observations: row.Observations,
		Version: row.Version, PromotedAt: time.Time(row.PromotedAt), RetiredAt: time.Time(row.RetiredAt),
	}, err
}

// Put implements [application.Memories].
func (m *Memories) Put(ctx context.Context, workspace uuid.NullUUID, memory domain.Memory) error {
	return m.queries.PutMemory(ctx, platformdb.PutMemoryParams{
		WorkspaceID: workspace, MemoryID: memory.ID, Version: memory.Version,
		PromotedAt: zeronull.Timestamptz(memory.PromotedAt), RetiredAt: zeronull.Timestamptz(memory.RetiredAt),
	})
}

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
