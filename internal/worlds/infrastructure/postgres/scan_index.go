package postgres

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

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

// Search returns the subjects of a workspace whose last scan found something of kind, at most limit, those with most
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
