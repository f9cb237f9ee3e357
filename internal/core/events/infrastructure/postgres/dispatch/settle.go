package dispatch

import (
	"context"
	"fmt"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Outcome is what became of a row.
type Outcome string

// The outcomes of a dispatch.
const (
	Delivered Outcome = "delivered"
	Retried   Outcome = "retried"  // pending again, due after Delay
	Failed    Outcome = "failed"   // a dead letter
	Released  Outcome = "released" // a lease was given back: pending again, nothing counted
)

// Settlement is the committed outcome of one row's dispatch.
type Settlement struct {
	Envelope  events.Envelope
	Outcome   Outcome
	Attempts  int           // counted dispatches in the current cycle, this one included
	LastError string        // Class: handler: message, a line for each handler that failed
	Delay     time.Duration // until a retried row is due again

	classes map[string]string // of the errors in this dispatch, by handler
}

// DeliveredRow returns the settlement of a delivered row.
func DeliveredRow(row Row) Settlement {
	return Settlement{Envelope: row.Envelope, Outcome: Delivered, Attempts: row.Attempts + 1}
}

// deliver settles rows as delivered.
func deliver(ctx context.Context, t *Tx, rows []Row) error {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	ids, times := Keys(rows)
	settled, err := t.Queries.Deliver(ctx, coredb.DeliverParams{Ids: ids, OccurredAts: times})
	if err != nil {
		return fmt.Errorf("settle as delivered: %w", err)
	}
	if int(settled) != len(rows) {
		return fmt.Errorf("settle as delivered: this worker holds only %d of %d rows", settled, len(rows))
	}
	for _, row := range rows {
		t.Settled = append(t.Settled, DeliveredRow(row))
	}
	return nil
}

// record writes a decision on a row, unless another worker has claimed the row since.
func record(ctx context.Context, t *Tx, row Row, d Decision) error {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	encoded, err := d.Encoded()
	if err != nil {
		return err
	}
	e := row.Envelope
	var held bool
	if d.Failed {
		held, err = t.Queries.Fail(ctx, coredb.FailParams{
			ID: e.EventID, OccurredAt: e.OccurredAt, AvailableAt: row.AvailableAt,
			LastError: d.LastError, HandlerFailures: encoded,
		})
	} else {
		held, err = t.Queries.Retry(ctx, coredb.RetryParams{
			ID: e.EventID, OccurredAt: e.OccurredAt, AvailableAt: row.AvailableAt, DelaySeconds: d.Delay.Seconds(),
			LastError: d.LastError, HandlerFailures: encoded, Counted: d.Counted,
		})
	}
	if err != nil {
		return fmt.Errorf("record the failure of %s: %w", e.EventID, err)
	}
	if !held {
		t.consumer.Log.WarnContext(ctx, "a failure was not recorded: another worker has claimed the event since",
			pgtx.LogEventID, e.EventID, pgtx.LogEventType, e.EventType)
		return nil
	}
	t.Settled = append(t.Settled, d.Settlement(row))
	return nil
}
