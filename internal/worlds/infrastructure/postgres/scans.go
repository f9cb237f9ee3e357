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
		WorkspaceID: workspace, ScanID: scan.ID, Subject: scan.Subject, StartedAt: scan.StartedAt,
	})
}

// Lock implements [application.Scans].
func (s *Scans) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Scan, error) {
	row, err := s.queries.LockScan(ctx, worldsdb.LockScanParams{ScanID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		err = domain.ErrNoScan
	}
	return domain.Scan{
		ID: id, Subject: row.Subject, StartedAt: row.StartedAt, FinishedAt: time.Time(row.FinishedAt),
		Findings: row.Findings,
	}, err
}

// Save implements [application.Scans].
func (s *Scans) Save(ctx context.Context, workspace uuid.NullUUID, scan domain.Scan) error {
	return s.queries.SaveScan(ctx, worldsdb.SaveScanParams{
		ScanID: scan.ID, WorkspaceID: workspace,
		Findings:   append(domain.Findings{}, scan.Findings...), // a nil slice would be null
		FinishedAt: zeronull.Timestamptz(scan.FinishedAt),
	})
}

// ScanIndex stores the last finished scan of each subject, in the transaction it was built for.
type ScanIndex struct{ queries *worldsdb.Queries }

// NewScanIndex returns the repository for tx.
func NewScanIndex(tx events.Tx) *ScanIndex { return &ScanIndex{queries: worldsdb.New(tx)} }

// Put indexes scan, unless the same or a later scan of its subject is indexed already.
func (s *ScanIndex) Put(ctx context.Context, workspace uuid.NullUUID, scan domain.IndexedScan) error {
	kinds, occurrences := make([]string, len(scan.Findings)), make([]int64, len(scan.Findings))
	for i, f := range scan.Findings {
		kinds[i], occurrences[i] = f.Kind, f.Occurrences
	}
	err := s.queries.IndexScan(ctx, worldsdb.IndexScanParams{
		WorkspaceID: workspace, Subject: scan.Subject, ScanID: scan.ScanID, FinishedAt: scan.FinishedAt,
		FindingKinds: kinds, FindingCount: scan.Findings.Occurrences(),
	})
	if err != nil || len(kinds) == 0 {
		return err
	}
	return s.queries.IndexFindings(ctx, worldsdb.IndexFindingsParams{
		WorkspaceID: workspace, Subject: scan.Subject, ScanID: scan.ScanID, FinishedAt: scan.FinishedAt,
		Kinds: kinds, Occurrences: occurrences,
	})
}

// Search returns up to most subjects of a workspace whose last scan found something of kind, those with most
// occurrences first.
func (s *ScanIndex) Search(ctx context.Context, workspace uuid.NullUUID, kind string,
	most int32) ([]domain.FoundIn, error) {
	rows, err := s.queries.SearchScans(ctx, worldsdb.SearchScansParams{Kind: kind, WorkspaceID: workspace, Most: most})
	found := make([]domain.FoundIn, len(rows))
	for i, row := range rows {
		found[i] = domain.FoundIn(row)
	}
	return found, err
}
