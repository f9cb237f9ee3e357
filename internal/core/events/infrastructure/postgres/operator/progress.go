package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Progress counts a workspace's events by outcome.
type Progress struct {
	Published, Delivered, Failed int
	// P50 and P99 are percentiles of the time from insert to settlement, by the database clock,
	// over the latest 10,000 deliveries.
	P50, P99 time.Duration
}

// Settled reports whether every event has been delivered or has failed.
func (p Progress) Settled() bool { return p.Published == p.Delivered+p.Failed }

// ReadProgress reads the progress of a workspace's events since an id made at that time.
func ReadProgress(ctx context.Context, pool *pgxpool.Pool, workspace, since uuid.UUID) (Progress, error) {
	var row coredb.ProgressRow
	err := pgtx.InTx(ctx, pool, pgtx.OperatorRole, func(tx pgx.Tx) (err error) {
		row, err = coredb.New(tx).Progress(ctx, coredb.ProgressParams{Since: since, WorkspaceID: workspace})
		return err
	})
	if err != nil {
		return Progress{}, fmt.Errorf("read progress: %w", err)
	}
	return Progress{
		Published: int(row.Published), Delivered: int(row.Delivered), Failed: int(row.Failed),
		P50: pgtx.Seconds(row.P50), P99: pgtx.Seconds(row.P99),
	}, nil
}

// Step is one event of a [ReadTrail] and what became of it.
type Step struct {
	ID           uuid.UUID
	EventType    string
	EventVersion int32
	Status       string
	LastError    string
	HandledBy    []string // by name
}

// Settled reports whether the event is delivered or has failed.
func (s Step) Settled() bool { return s.Status == "delivered" || s.Status == "failed" }

// ReadTrail reads the events of a workspace since an id made at that time, in the order they were published. It is
// meant for few events.
func ReadTrail(ctx context.Context, pool *pgxpool.Pool, workspace, since uuid.UUID) (trail []Step, err error) {
	err = pgtx.InTx(ctx, pool, pgtx.OperatorRole, func(tx pgx.Tx) error {
		rows, err := coredb.New(tx).Trail(ctx, coredb.TrailParams{Since: since, WorkspaceID: workspace})
		for _, row := range rows {
			trail = append(trail, Step(row))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read trail: %w", err)
	}
	return trail, nil
}
