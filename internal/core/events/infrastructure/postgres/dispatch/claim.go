package dispatch

import (
	"context"
	"fmt"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// claim is how a runner claims.
type claim struct {
	limit         int  // zero: not at all
	checkDeferred bool // check deferred constraints after each handler
	crashed       bool // only rows with crashes, of which a process runs one at a time
}

// claimResult is the result of one claim.
type claimResult struct {
	rows          int  // claimed
	payload       int  // bytes of them
	left          int  // of them, to be run one by one
	checkDeferred bool // and with deferred constraints checked after each handler
	undone        bool // a batch was rolled back
	deadlock      bool // because of a deadlock
	lost          bool // the connection was lost: its backend may hold the rows a little longer
	settled       []Settlement
}

// dispatch claims rows in one transaction, runs their handlers and settles them. It leaves rows that cannot be batched
// to later claims of one row. Ctx ends the handlers. After an error the rows are as they were, or the answer to a
// commit was lost; no attempt is counted.
func dispatch(ctx context.Context, c *Consumer, entry *journal.Entry, how claim) (result claimResult, err error) {
	if err := entry.Clear(ctx); err != nil {
		return claimResult{}, err
	}
	t, err := Begin(ctx, c, entry)
	if err != nil {
		return claimResult{}, err
	}
	defer t.End()
	if err := t.SampleWatermark(ctx); err != nil {
		return claimResult{}, err
	}
	rows, err := claimRows(ctx, t, how)
	if err != nil || len(rows) == 0 {
		return claimResult{}, err
	}
	result.rows = len(rows)
	var batch []Row
	for _, row := range rows {
		result.payload += len(row.Envelope.Payload)
		// only rows that have not failed yet
		if len(row.Failures) == 0 && row.Corrupt == nil && len(c.handlersOf(row.Envelope)) > 0 {
			batch = append(batch, row)
		}
	}
	if len(batch) > 1 {
		result.left = len(rows) - len(batch)
		err = runBatch(ctx, t, batch, &result)
	} else {
		result.left = len(rows) - 1
		err = (&singleRun{tx: t, row: rows[0], checkDeferred: how.checkDeferred}).run(ctx, &result)
	}
	result.settled = t.Settled
	return result, err
}

func claimRows(ctx context.Context, t *Tx, how claim) ([]Row, error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	c := t.consumer
	found, err := t.Queries.Claim(ctx, coredb.ClaimParams{
		Generation: int64(c.Generation), EventType: c.Subscription.EventType,
		RowLimit:  int32(how.limit), //nolint:gosec // bounded
		Watermark: c.Watermark.Get(), Worker: c.Journal.Worker, Crashed: how.crashed,
	})
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", c.Subscription.EventType, err)
	}
	rows := make([]Row, len(found))
	for i, r := range found {
		rows[i] = NewRow(r)
	}
	return rows, nil
}
