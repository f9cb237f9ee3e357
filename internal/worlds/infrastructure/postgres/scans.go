package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
	err := s.queries.AddScan(ctx, worldsdb.AddScanParams{
		WorkspaceID: workspace, ScanID: scan.ID, Subject: scan.Subject, State: string(scan.State), StartedAt: scan.StartedAt,
	})
	if err != nil {
		return fmt.Errorf("store scan %s: %w", scan.ID, err)
	}
	return nil
}

// Lock implements [application.Scans].
func (s *Scans) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Scan, error) {
	row, err := s.queries.LockScan(ctx, worldsdb.LockScanParams{ScanID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.Scan{}, domain.ErrNoScan
	}
	if err != nil {
		return domain.Scan{}, fmt.Errorf("read scan %s: %w", id, err)
	}
	scan := domain.Scan{
		ID: id, Subject: row.Subject, State: domain.ScanState(row.State), StartedAt: row.StartedAt,
		FinishedAt: row.FinishedAt.Time,
		Failure:    text(row.Failure),
	}
	if err := json.Unmarshal(row.Findings, &scan.Findings); err != nil {
		return domain.Scan{}, fmt.Errorf("read the findings of scan %s: %w", id, err)
	}
	return scan, nil
}

// Save implements [application.Scans].
func (s *Scans) Save(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error {
	findings, err := json.Marshal(append(domain.Findings{}, scan.Findings...)) // [] for none
	if err != nil {
		return fmt.Errorf("encode the findings of scan %s: %w", scan.ID, err)
	}
	n, err := s.queries.SaveScan(ctx, worldsdb.SaveScanParams{
		ScanID: scan.ID, WorkspaceID: workspace, State: string(scan.State), Findings: findings,
		Failure:    textOrNull(scan.Failure),
		FinishedAt: timeOrNull(scan.FinishedAt),
	})
	if err != nil {
		return fmt.Errorf("store scan %s: %w", scan.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("store scan %s: it is not running", scan.ID)
	}
	return nil
}
