package application

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
)

// Scans stores scans in one transaction.
type Scans interface {
	// Add stores a running scan.
	Add(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error
	// Lock returns a scan, or [domain.ErrNoScan], and locks it until the transaction ends.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Scan, error)
	// Save stores a scan that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error
}

// ManageScans begins and ends scans. Safe for concurrent use.
type ManageScans struct {
	Transact UnitOfWork[Scans]
	NewID    func() uuid.UUID
	Now      func() time.Time
}

// Start begins a scan of subject in workspace and returns its id. It publishes no event.
func (m *ManageScans) Start(ctx context.Context, workspace uuid.NullUUID, subject string) (id uuid.UUID, err error) {
	defer wrap(&err, "start a scan of %.200q", subject)
	scan, err := domain.StartScan(m.NewID(), subject, m.Now())
	if err != nil {
		return uuid.Nil, err
	}
	return scan.ID, m.Transact(ctx, workspace, func(scans Scans, _ events.EventPublisher) error {
		return scans.Add(ctx, workspace, scan)
	})
}

// Complete ends a running scan and publishes worlds.scan.completed; both commit together or not at all. A second call
// with the same findings changes nothing, publishes nothing and returns false. The error is [domain.ErrNoScan], or
// [domain.ErrScanCompleted] for other findings.
func (m *ManageScans) Complete(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID,
	findings domain.Findings) (completed bool, err error) {
	defer wrap(&err, "complete scan %s", id)
	err = m.Transact(ctx, workspace, func(scans Scans, publisher events.EventPublisher) error {
		scan, err := scans.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		now := m.Now()
		completed, err = scan.Complete(findings, now)
		if err != nil || !completed {
			return err
		}
		if err := scans.Save(ctx, workspace, scan); err != nil {
			return err
		}
		payload := contracts.ScanCompleted{
			ScanID: scan.ID, Subject: scan.Subject, StartedAt: scan.StartedAt, FinishedAt: scan.FinishedAt,
			Findings: make([]contracts.ScanFinding, len(scan.Findings)),
		}
		for i, f := range scan.Findings {
			payload.Findings[i] = contracts.ScanFinding(f)
		}
		envelope, err := envelopeOf(contracts.ScanCompletedContract(), payload, workspace, now)
		if err != nil {
			return err
		}
		return publisher.Publish(ctx, envelope)
	})
	return completed, err
}
