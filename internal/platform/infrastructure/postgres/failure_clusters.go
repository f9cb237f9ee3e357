package postgres

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
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
