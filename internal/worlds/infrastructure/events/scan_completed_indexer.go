package events

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
)

// ScanCompletedIndexerName is part of the indexer's dedup key. It must never change.
const ScanCompletedIndexerName = "worlds.scan_completed_indexer"

// ScanCompletedEvent is what the indexer reads of worlds.scan.completed.
type ScanCompletedEvent struct {
	ScanID     uuid.UUID       `json:"scan_id"`
	Subject    string          `json:"subject"`
	FinishedAt time.Time       `json:"finished_at"`
	Findings   domain.Findings `json:"findings"`
}

// ScanCompletedIndexer indexes the last completed scan of each subject. Put ignores a scan if the same or a later one
// of its subject is indexed already.
func ScanCompletedIndexer(put func(context.Context, uuid.NullUUID, domain.IndexedScan) error) events.EventHandler {
	return events.HandlerOf(func(e events.Envelope, completed ScanCompletedEvent) (domain.IndexedScan, error) {
		findings, err := domain.NewFindings(completed.Findings...)
		completed.Findings = findings
		scan := domain.IndexedScan(completed)
		return scan, errors.Join(scan.Validate(e.OccurredAt), err)
	}, put)
}
