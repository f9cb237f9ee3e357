package lease

import (
	"context"
	"fmt"
	"slices"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// claimLeases claims up to limit rows, crashed ones or others. It may return leases and an error.
func claimLeases(ctx context.Context, c *dispatch.Consumer, limit int, crashed bool) ([]*lease, error) {
	t, err := dispatch.Begin(ctx, c, nil)
	if err != nil {
		return nil, err
	}
	defer t.End()
	if err := t.SampleWatermark(ctx); err != nil {
		return nil, err
	}
	// a stop must not come between the claim and its answer: this process would not know of its leases
	detached := context.WithoutCancel(ctx)
	sent := time.Now()
	found, err := takeLeases(detached, t, c, limit, crashed)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, l := range found {
		l.renewed = sent
	}
	if err = t.Commit(detached); err == nil {
		return found, nil
	}
	if pgtx.Answered(err) {
		return nil, err
	}
	t.End()
	return confirm(ctx, c, found), err
}

func takeLeases(ctx context.Context, t *dispatch.Tx, c *dispatch.Consumer, limit int,
	crashed bool) ([]*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	names := make([]string, len(c.Handlers))
	for i, r := range c.Handlers {
		names[i] = r.Name
	}
	rows, err := t.Queries.Lease(ctx, coredb.LeaseParams{
		Generation: int64(c.Generation), EventType: c.Subscription.EventType,
		RowLimit:     int32(limit), //nolint:gosec // bounded
		LeaseSeconds: c.Subscription.Lease.Seconds(), Worker: c.Owner, Handlers: names,
		Watermark: c.Watermark.Get(), Crashed: crashed,
	})
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", c.Subscription.EventType, err)
	}
	found := make([]*lease, len(rows))
	for i, r := range rows {
		row := dispatch.NewRow(coredb.ClaimRow{
			EventID: r.EventID, EventType: r.EventType, EventVersion: r.EventVersion, OccurredAt: r.OccurredAt,
			Source: r.Source, Target: r.Target, ContentClass: r.ContentClass, WorkspaceID: r.WorkspaceID, Payload: r.Payload,
			IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext, Attempts: r.Attempts - 1,
			HandlerFailures: r.HandlerFailures, Crashes: r.Crashes,
		})
		row.Token = r.ClaimToken
		found[i] = &lease{row: row, handled: r.Handled}
	}
	return found, nil
}

// confirm finds out which leases of a claim hold, when the answer to its COMMIT was lost: that may still be on its way.
// A worker that stops goes on asking until its grace period is over, for it cannot release what it does not know of.
func confirm(ctx context.Context, c *dispatch.Consumer, unknown []*lease) (held []*lease) {
	var wait pgtx.Backoff
	var recheck dispatch.Recheck
	recheck.Begin()
	for len(unknown) > 0 && ctx.Err() == nil {
		sent := time.Now()
		holds, err := renew(ctx, c, unknown, make([]string, len(unknown)))
		if err != nil {
			if sent.Sub(unknown[0].renewed) > c.Subscription.Lease {
				break
			}
			pgtx.Pause(ctx, wait.Next(), nil)
			continue
		}
		unknown = slices.DeleteFunc(unknown, func(l *lease) bool {
			if holds[l.row.Token] {
				l.renewed = sent
				held = append(held, l)
			}
			return holds[l.row.Token]
		})
		if len(unknown) == 0 || !recheck.Next() {
			break
		}
		pgtx.Pause(ctx, pgtx.RecheckPause, nil)
	}
	return held
}
