package postgres

import (
	"context"
	"encoding/json"
	"fmt"

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
	failures, err := json.Marshal(c.Failures)
	if err != nil {
		return false, fmt.Errorf("add a failure cluster: %w", err)
	}
	n, err := f.queries.AddFailureCluster(ctx, platformdb.AddFailureClusterParams{
		ClusterID: c.ID, WorkspaceID: workspace, Component: c.Signature.Component, Operation: c.Signature.Operation,
		ErrorClass: c.Signature.ErrorClass, Revision: c.Revision, Failures: failures, FailureCount: c.Count(),
		Severity: string(c.Severity()), FirstSeenAt: c.FirstSeenAt, LastSeenAt: c.LastSeenAt,
	})
	if err != nil {
		return false, fmt.Errorf("add a failure cluster: %w", err)
	}
	return n == 1, nil
}

// Lock implements [application.FailureClusters].
func (f *FailureClusters) Lock(ctx context.Context, workspace uuid.NullUUID,
	signature domain.FailureSignature) (domain.FailureCluster, error) {
	row, err := f.queries.LockFailureCluster(ctx, platformdb.LockFailureClusterParams{
		WorkspaceID: workspace, Component: signature.Component, Operation: signature.Operation,
		ErrorClass: signature.ErrorClass,
	})
	if err != nil {
		return domain.FailureCluster{}, fmt.Errorf("read the failure cluster: %w", err)
	}
	cluster := domain.FailureCluster{
		ID: row.ClusterID, Signature: signature, Revision: row.Revision, FirstSeenAt: row.FirstSeenAt,
		LastSeenAt: row.LastSeenAt,
	}
	if err := json.Unmarshal(row.Failures, &cluster.Failures); err != nil {
		return domain.FailureCluster{}, fmt.Errorf("read the failures of cluster %s: %w", row.ClusterID, err)
	}
	return cluster, nil
}

// Save implements [application.FailureClusters].
func (f *FailureClusters) Save(ctx context.Context, workspace uuid.NullUUID, c domain.FailureCluster) error {
	failures, err := json.Marshal(c.Failures)
	if err != nil {
		return fmt.Errorf("store failure cluster %s: %w", c.ID, err)
	}
	n, err := f.queries.SaveFailureCluster(ctx, platformdb.SaveFailureClusterParams{
		WorkspaceID: workspace, ClusterID: c.ID, Revision: c.Revision, Failures: failures, FailureCount: c.Count(),
		Severity: string(c.Severity()), FirstSeenAt: c.FirstSeenAt, LastSeenAt: c.LastSeenAt,
	})
	if err != nil {
		return fmt.Errorf("store failure cluster %s: %w", c.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("store failure cluster %s: it is not there", c.ID)
	}
	return nil
}
