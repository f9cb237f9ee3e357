package operator

import (
	"context"
	"time"

	"github.com/google/uuid"

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

// Progress reads the progress of a workspace's events since an id made at that time.
func (c *Client) Progress(ctx context.Context, workspace, since uuid.UUID) (p Progress, err error) {
	err = c.inTx(ctx, "read progress", func(tx *pgtx.Tx) error {
		row, err := coredb.New(tx).Progress(ctx, coredb.ProgressParams{Since: since, WorkspaceID: workspace})
		p = Progress{Published: int(row.Published), Delivered: int(row.Delivered), Failed: int(row.Failed),
			P50: pgtx.Seconds(row.P50), P99: pgtx.Seconds(row.P99)}
		return err
	})
	return p, err
}

// Step is one event of a [Client.Trail] and what became of it.
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

// Trail reads the events of a workspace since an id made at that time, in the order they were published. It is meant
// for few events.
func (c *Client) Trail(ctx context.Context, workspace, since uuid.UUID) (trail []Step, err error) {
	err = c.inTx(ctx, "read trail", func(tx *pgtx.Tx) error {
		rows, err := coredb.New(tx).Trail(ctx, coredb.TrailParams{Since: since, WorkspaceID: workspace})
		for _, row := range rows {
			trail = append(trail, Step(row))
		}
		return err
	})
	return trail, err
}
