package application

import (
	"cmp"
	"context"
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
	Transact UnitOfWork[FailureClusters]
	NewID    func() uuid.UUID
	Now      func() time.Time
	// AlsoPublishV1 publishes version 1 beside version 2, for consumers outside this service that read only version 1.
	// Unset it before the deadline of version 1: from then on the event is refused, and the detection fails with it.
	AlsoPublishV1 bool
}

// Detect records a detection in workspace and publishes platform.failure_cluster.detected.v2. It returns the
// new state of the cluster. Each call counts, also a repeated one.
func (d *DetectFailureCluster) Detect(ctx context.Context, workspace uuid.NullUUID,
	detection domain.FailureDetection) (cluster domain.FailureCluster, err error) {
	defer wrap(&err, "detect failures of %s", detection.Signature)
	detection.SeenAt = detection.SeenAt.Truncate(time.Microsecond) // the precision of the database
	now := d.Now()
	cluster, err = domain.NewFailureCluster(d.NewID(), detection, now)
	if err != nil {
		return cluster, err
	}
	err = d.Transact(ctx, workspace, func(clusters FailureClusters, publisher events.EventPublisher) error {
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
	return cluster, err
}

func (d *DetectFailureCluster) publish(ctx context.Context, publisher events.EventPublisher, workspace uuid.NullUUID,
	c domain.FailureCluster, now time.Time) error {
	detected := contracts.FailureClusterDetectedV2{
		ClusterID: c.ID, Revision: c.Revision, Severity: string(c.Severity()), FirstSeenAt: c.FirstSeenAt.UTC(),
		LastSeenAt: c.LastSeenAt.UTC(),
		Signature:  contracts.FailureSignature(c.Signature),
	}
	example := ""
	for _, f := range c.Failures {
		detected.Failures = append(detected.Failures, contracts.ClusterFailures(f))
		example = cmp.Or(example, f.Example)
	}
	err := publish(ctx, publisher, workspace, now, contracts.FailureClusterDetectedV2Contract(), detected)
	if err != nil || !d.AlsoPublishV1 {
		return err
	}
	return publish(ctx, publisher, workspace, now, contracts.FailureClusterDetectedContract(),
		contracts.FailureClusterDetected{
			ClusterID: c.ID, Signature: c.Signature.String(), Count: c.Count(), Example: example,
		})
}
