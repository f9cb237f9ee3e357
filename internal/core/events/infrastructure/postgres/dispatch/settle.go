package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

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
	// Quarantined is a row that can neither be handled nor be marked as failed: no worker claims it.
	Quarantined Outcome = "quarantined"
)

// Settlement is the committed outcome of one row's dispatch.
type Settlement struct {
	Envelope  *events.Envelope // not to be changed; who keeps it keeps all rows of its claim
	Outcome   Outcome
	Attempts  int           // counted dispatches in the current cycle, this one included
	LastError string        // Class: handler: message, a line for each handler that failed
	Delay     time.Duration // until a retried row is due again

	classes map[string]string // of the errors in this dispatch, by handler
	waiting bool              // for the end of an outage, which was logged
}

// Delivered says that t settles row as delivered.
func (t *Tx) Delivered(row *Row) {
	t.Settled = append(t.Settled, Settlement{Envelope: &row.Envelope, Outcome: Delivered, Attempts: row.Attempts + 1})
}

// deliver settles rows as delivered.
func deliver(ctx context.Context, t *Tx, rows []Row) error {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	ids, times, _ := Keys(rows)
	settled, err := t.Queries.Deliver(ctx, coredb.DeliverParams{Ids: ids, OccurredAts: times})
	if err != nil {
		return fmt.Errorf("%w as delivered: %w", ErrSettle, err)
	}
	if int(settled) != len(rows) { // they are locked
		return fmt.Errorf("%w as delivered: %d of %d rows: %w", ErrSettle, settled, len(rows), errKept)
	}
	t.Settled = slices.Grow(t.Settled, len(rows))
	for i := range rows {
		t.Delivered(&rows[i])
	}
	return nil
}

// Record writes a decision on a row, in either mode, and reports whether this worker still held the row.
func Record(ctx context.Context, t *Tx, row Row, d Decision) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	failures, err := json.Marshal(d.Failures)
	if err != nil {
		return false, fmt.Errorf("encode handler_failures: %w", err)
	}
	held, err = t.Queries.Record(ctx, coredb.RecordParams{
		ID: row.Envelope.EventID, OccurredAt: row.Envelope.OccurredAt, Leased: row.Token != uuid.Nil, Token: row.Token,
		AvailableAt: row.AvailableAt, Failed: d.Failed, Counted: d.Counted, DelaySeconds: d.Delay.Seconds(),
		LastError: d.LastError, HandlerFailures: failures,
	})
	if err != nil {
		return false, fmt.Errorf("%w: record the failure of %s: %w", ErrSettle, row.Envelope.EventID, err)
	}
	if held {
		t.Settled = append(t.Settled, d.settlement(row))
		err = t.addFailedAttempts(ctx, row, d.attempts)
	}
	return held, err
}

// addFailedAttempts keeps what failed in a dispatch of row.
func (t *Tx) addFailedAttempts(ctx context.Context, row Row, attempts []failedAttempt) error {
	if len(attempts) == 0 {
		return nil
	}
	for i := range attempts {
		attempts[i].TraceID = traceID(row.Envelope.TraceContext)
	}
	encoded, err := json.Marshal(attempts)
	if err != nil {
		return fmt.Errorf("encode failed attempts: %w", err)
	}
	err = t.Queries.AddFailedAttempts(ctx, coredb.AddFailedAttemptsParams{
		ID: row.Envelope.EventID, OccurredAt: row.Envelope.OccurredAt, Worker: t.consumer.Journal.Name, Attempts: encoded,
	})
	if err != nil {
		return fmt.Errorf("%w: keep the failed attempts of %s: %w", ErrSettle, row.Envelope.EventID, err)
	}
	return nil
}
