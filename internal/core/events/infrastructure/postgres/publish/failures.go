package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// FailureReader reads the failed events of a context in one transaction.
type FailureReader struct {
	source  events.Scope
	queries *coredb.Queries
}

var _ events.FailureReader = (*FailureReader)(nil)

// NewFailureReader returns a reader for source's events, bound to tx.
func NewFailureReader(tx events.Tx, source events.Scope) *FailureReader {
	return &FailureReader{source: source, queries: coredb.New(tx)}
}

// Failures implements [events.FailureReader].
func (f *FailureReader) Failures(ctx context.Context, limit int, after events.Failure) ([]events.Failure, error) {
	params := coredb.FailuresParams{
		Source: string(f.source), RowLimit: int32(min(max(limit, math.MinInt32), math.MaxInt32)), //nolint:gosec // bounded
	}
	if e := after.Envelope; e.EventID != uuid.Nil {
		params.AfterID = uuid.NullUUID{UUID: e.EventID, Valid: true}
		params.AfterFailedAt = pgtype.Timestamptz{Time: after.FailedAt, Valid: true}
		params.AfterOccurredAt = pgtype.Timestamptz{Time: e.OccurredAt, Valid: true}
	}
	rows, err := f.queries.Failures(ctx, params)
	if err != nil {
		return nil, fmt.Errorf("read failures of %s: %w", f.source, refusal(err))
	}
	failures := make([]events.Failure, len(rows))
	for i, r := range rows {
		failures[i] = events.Failure{
			Envelope: events.Envelope{
				EventID: r.EventID, EventType: r.EventType, EventVersion: int(r.EventVersion), OccurredAt: r.OccurredAt.UTC(),
				Source: f.source, Target: events.Scope(r.Target),
				WorkspaceID: uuid.NullUUID{UUID: r.WorkspaceID, Valid: r.WorkspaceID != uuid.Nil},
				Payload:     json.RawMessage(r.Payload), IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext,
			},
			Attempts: int(r.Attempts), LastError: r.LastError, PriorReplays: int(r.PriorReplays),
			FirstFailedAt: r.FirstFailedAt.UTC(), FailedAt: r.FailedAt.UTC(), DiscardedAt: r.DiscardedAt.UTC(),
		}
	}
	return failures, nil
}
