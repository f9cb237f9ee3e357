package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
)

// FailureClusters stores failure clusters in one transaction.
type FailureClusters interface {
	// Add stores a new cluster, and returns false if its signature has one already.
	Add(ctx context.Context, workspace uuid.NullUUID, cluster domain.FailureCluster) (added bool, err error)
	// Lock returns the cluster of a signature and locks it until the transaction ends.
	Lock(ctx context.Context, workspace uuid.NullUUID, signature domain.FailureSignature) (domain.FailureCluster, error)
	// Save stores a cluster that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, cluster domain.FailureCluster) error
}

// DetectFailureCluster adds failures to the cluster of their signature. The cluster and its event commit together or
// not at all. Safe for concurrent use.
type DetectFailureCluster struct {
	transact UnitOfWork[FailureClusters]
	newID    func() uuid.UUID
	now      func() time.Time
	alsoV1   bool
}

// DetectFailureClusterOption changes what a [DetectFailureCluster] publishes.
type DetectFailureClusterOption func(*DetectFailureCluster)

// AlsoPublishV1 publishes version 1 beside version 2, for consumers outside this service that read only version 1.
// Remove the option before the deadline of version 1: from then on the event is refused, and the detection fails with
// it.
func AlsoPublishV1() DetectFailureClusterOption {
	return func(d *DetectFailureCluster) { d.alsoV1 = true }
}

// NewDetectFailureCluster returns the use case.
func NewDetectFailureCluster(transact UnitOfWork[FailureClusters], newID func() uuid.UUID, now func() time.Time,
	options ...DetectFailureClusterOption) *DetectFailureCluster {
	d := &DetectFailureCluster{transact: transact, newID: newID, now: now}
	for _, option := range options {
		option(d)
	}
	return d
}

// Detect records a detection in workspace and publishes platform.failure_cluster.detected.v2. It returns the
// new state of the cluster. Each call counts, also a repeated one.
func (d *DetectFailureCluster) Detect(ctx context.Context, workspace uuid.NullUUID,
	detection domain.FailureDetection) (cluster domain.FailureCluster, err error) {
	detection.SeenAt = detection.SeenAt.Truncate(time.Microsecond) // the precision of the database
	now := d.now()
	cluster, err = domain.NewFailureCluster(d.newID(), detection, now)
	if err != nil {
		return domain.FailureCluster{}, fmt.Errorf("detect failures: %w", err)
	}
	err = d.transact(ctx, workspace, func(clusters FailureClusters, publisher events.EventPublisher) error {
		added, err := clusters.Add(ctx, workspace, cluster)
		if err != nil {
			return err
		}
		if !added {
			if cluster, err = clusters.Lock(ctx, workspace, detection.Signature); err != nil {
				return err
			}
			if cluster, err = cluster.Raise(detection, now); err != nil {
				return err
			}
			if err := clusters.Save(ctx, workspace, cluster); err != nil {
				return err
			}
		}
		return d.publish(ctx, publisher, workspace, cluster, now)
	})
	if err != nil {
		return domain.FailureCluster{}, fmt.Errorf("detect failures of %s: %w", detection.Signature, err)
	}
	return cluster, nil
}

func (d *DetectFailureCluster) publish(ctx context.Context, publisher events.EventPublisher, workspace uuid.NullUUID,
	c domain.FailureCluster, now time.Time) error {
	detected := contracts.FailureClusterDetectedV2{
		ClusterID: c.ID, Revision: c.Revision, Severity: string(c.Severity()), FirstSeenAt: c.FirstSeenAt.UTC(),
		LastSeenAt: c.LastSeenAt.UTC(),
		Signature: contracts.FailureSignature{
			Component: c.Signature.Component, Operation: c.Signature.Operation, ErrorClass: c.Signature.ErrorClass,
		},
	}
	example := ""
	for _, f := range c.Failures {
		detected.Failures = append(detected.Failures,
			contracts.ClusterFailures{Kind: f.Kind, Count: f.Count, Example: f.Example})
		if example == "" {
			example = f.Example
		}
	}
	err := publish(ctx, publisher, workspace, now, contracts.FailureClusterDetectedV2Contract(), detected)
	if err != nil || !d.alsoV1 {
		return err
	}
	return publish(ctx, publisher, workspace, now, contracts.FailureClusterDetectedContract(),
		contracts.FailureClusterDetected{
			ClusterID: c.ID, Signature: c.Signature.String(), Count: c.Count(), Example: example,
		})
}
