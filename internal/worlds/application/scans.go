package application

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
)

// Scans stores scans in one transaction.
type Scans interface {
	// Add stores a scan that is running.
	Add(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error
	// Lock returns a scan, which nobody else can change until the transaction ends. The error is
	// [domain.ErrNoScan] if there is none.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Scan, error)
	// Save stores what became of a scan that was locked in this transaction.
	Save(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error
}

// StartScan begins scans. Safe for concurrent use.
type StartScan struct {
	transact UnitOfWork[Scans]
	now      func() time.Time
	newID    func() (uuid.UUID, error)
}

// NewStartScan composes the use case.
func NewStartScan(transact UnitOfWork[Scans], now func() time.Time, newID func() (uuid.UUID, error)) *StartScan {
	return &StartScan{transact: transact, now: now, newID: newID}
}

// Start begins a scan of subject in workspace and returns its id. Nobody is told before it is completed.
func (s *StartScan) Start(ctx context.Context, workspace uuid.NullUUID, subject string) (uuid.UUID, error) {
	id, err := s.newID()
	if err != nil {
		return uuid.Nil, fmt.Errorf("start a scan: %w", err)
	}
	scan, err := domain.StartScan(id, subject, s.now())
	if err != nil {
		return uuid.Nil, fmt.Errorf("start a scan: %w", err)
	}
	err = s.transact(ctx, workspace, func(scans Scans, _ events.EventPublisher) error {
		return scans.Add(ctx, workspace, scan)
	})
	if err != nil {
		return uuid.Nil, fmt.Errorf("start a scan of %s: %w", subject, err)
	}
	return id, nil
}

// CompleteScan ends scans with their findings: the completed scan and the event that says so commit together or not at
// all. Safe for concurrent use.
type CompleteScan struct {
	transact UnitOfWork[Scans]
	now      func() time.Time
}

// NewCompleteScan composes the use case.
func NewCompleteScan(transact UnitOfWork[Scans], now func() time.Time) *CompleteScan {
	return &CompleteScan{transact: transact, now: now}
}

// Complete ends a running scan and publishes worlds.scan.completed. Doing so again with the same findings changes
// nothing, publishes nothing and reports false. The error is [domain.ErrNoScan], [domain.ErrScanFailed], or
// [domain.ErrScanCompleted] for other findings.
func (c *CompleteScan) Complete(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, findings domain.Findings) (completed bool, err error) {
	err = c.transact(ctx, workspace, func(scans Scans, publisher events.EventPublisher) error {
		scan, err := scans.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		now := c.now()
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
			payload.Findings[i] = contracts.ScanFinding{Kind: f.Kind, Occurrences: f.Occurrences}
		}
		envelope, err := events.NewEnvelope(contracts.ScanCompletedContract(), payload)
		if err != nil {
			return err
		}
		envelope.WorkspaceID, envelope.OccurredAt = workspace, now
		return publisher.Publish(ctx, envelope)
	})
	if err != nil {
		return false, fmt.Errorf("complete scan %s: %w", id, err)
	}
	return completed, nil
}

// FailScan ends scans that cannot be completed. Safe for concurrent use.
type FailScan struct {
	transact UnitOfWork[Scans]
	now      func() time.Time
}

// NewFailScan composes the use case.
func NewFailScan(transact UnitOfWork[Scans], now func() time.Time) *FailScan {
	return &FailScan{transact: transact, now: now}
}

// Fail ends a running scan for good; failure says why. What was indexed of its subject stands, so nobody is told. A
// scan that has failed already is left as it is. The error is [domain.ErrNoScan] or [domain.ErrScanCompleted].
func (f *FailScan) Fail(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, failure string) error {
	err := f.transact(ctx, workspace, func(scans Scans, _ events.EventPublisher) error {
		scan, err := scans.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		if changed, err := scan.Fail(failure, f.now()); err != nil || !changed {
			return err
		}
		return scans.Save(ctx, workspace, scan)
	})
	if err != nil {
		return fmt.Errorf("fail scan %s: %w", id, err)
	}
	return nil
}
