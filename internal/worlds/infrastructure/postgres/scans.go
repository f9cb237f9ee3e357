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

// Scans stores scans in the transaction it was built for.
type Scans struct{ queries *worldsdb.Queries }

// NewScans returns the repository for tx.
func NewScans(tx events.Tx) *Scans { return &Scans{queries: worldsdb.New(tx)} }

// Add implements [application.Scans].
func (s *Scans) Add(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error {
	return s.queries.AddScan(ctx, worldsdb.AddScanParams{
		WorkspaceID: workspace, ScanID: scan.ID, Subject: scan.Subject, State: string(scan.State), StartedAt: scan.StartedAt,
	})
}

// Lock implements [application.Scans].
func (s *Scans) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Scan, error) {
	row, err := s.queries.LockScan(ctx, worldsdb.LockScanParams{ScanID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		err = domain.ErrNoScan
	}
	return domain.Scan{
		ID: id, Subject: row.Subject, State: domain.ScanState(row.State), StartedAt: row.StartedAt,
		FinishedAt: time.Time(row.FinishedAt), Findings: row.Findings, Failure: string(row.Failure),
	}, err
}

// Save implements [application.Scans].
func (s *Scans) Save(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error {
	return s.queries.SaveScan(ctx, worldsdb.SaveScanParams{
		ScanID: scan.ID, WorkspaceID: workspace, State: string(scan.State), Failure: zeronull.Text(scan.Failure),
		Findings:   append(domain.Findings{}, scan.Findings...), // a nil slice would be null
		FinishedAt: zeronull.Timestamptz(scan.FinishedAt),
	})
}
