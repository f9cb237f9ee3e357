package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

var (
	errLost      = errors.New("the lease is lost, or its event is settled already")
	errNoTime    = errors.New("the worker stops, and there was no time to settle it")
	errRowLocked = errors.New("another transaction has locked the row")
)

// lease is a row that is in flight with this process, until it is settled, released or lost.
type lease struct {
	row     dispatch.Row
	handled []string                 // handlers that need not run
	slot    bool                     // it holds the crash slot
	probe   string                   // the handler that is called for its breaker
	probed  chan<- *dispatch.Failure // gets what became of that; nil: the call succeeded
	cancel  context.CancelCauseFunc  // ends the work on it
	renewed time.Time                // when its latest renewal was sent; under the consumer's lock
}

// logError returns the attributes of an error of settling l.
func (l *lease) logError(err error) []any {
	if errors.Is(err, dispatch.ErrCompletion) { // its text may quote the payload
		return []any{pgtx.LogErrorClass, dispatch.Classify(err, 0).Class, pgtx.LogEventID, l.row.Envelope.EventID}
	}
	return append(pgtx.LogError(err), pgtx.LogEventID, l.row.Envelope.EventID)
}

func rowsOf(leases []*lease) []dispatch.Row {
	rows := make([]dispatch.Row, len(leases))
	for i, l := range leases {
		rows[i] = l.row
	}
	return rows
}

// claim leases up to limit rows, crashed ones or others. It may return leases and an error.
func claim(ctx context.Context, c *dispatch.Consumer, limit int, crashed bool, probe string) ([]*lease, error) {
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
	found, err := take(detached, t, c, limit, crashed, probe)
	if err != nil {
		return nil, err
	}
	err = t.Commit(detached) // also of none: rows may wait for a breaker now
	switch {
	case len(found) == 0:
		return nil, err
	case err == nil:
		c.Claimed(ctx, rowsOf(found))
		return found, nil
	case pgtx.Answered(err):
		return nil, fmt.Errorf("%w %s: %w", dispatch.ErrClaim, c.Subscription.EventType, err)
	}
	t.End()
	return confirm(ctx, c, found), err
}

func take(ctx context.Context, t *dispatch.Tx, c *dispatch.Consumer, limit int, crashed bool,
	probe string) ([]*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	names := make([]string, len(c.Handlers))
	for i, r := range c.Handlers {
		names[i] = r.Name
	}
	sent := time.Now()
	rows, err := t.Queries.Lease(ctx, coredb.LeaseParams{
		Generation: int64(c.Journal.Generation), EventType: c.Subscription.EventType,
		RowLimit:     int32(limit), //nolint:gosec // bounded
		LeaseSeconds: c.Subscription.Lease.Seconds(), Worker: fmt.Sprintf("%s %.256s", c.Journal.Worker, c.Journal.Name),
		Handlers: names, Watermark: c.Watermark.Get(), Crashed: crashed,
		Probe: probe,
	})
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", dispatch.ErrClaim, c.Subscription.EventType, err)
	}
	found := make([]*lease, len(rows))
	for i, r := range rows {
		row := dispatch.Row{
			Envelope: events.Envelope{
				EventID: r.EventID, EventType: r.EventType, EventVersion: int(r.EventVersion), OccurredAt: r.OccurredAt,
				Source: events.Scope(r.Source), Target: events.Scope(r.Target),
				WorkspaceID: uuid.NullUUID{UUID: r.WorkspaceID, Valid: r.WorkspaceID != uuid.Nil},
				Payload:     json.RawMessage(r.Payload), IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext,
			},
			ContentClass: r.ContentClass, Attempts: int(r.Attempts) - 1, Token: r.ClaimToken, Crashes: int(r.Crashes),
			AvailableAt: r.AvailableAt, Replayed: r.Replayed, Breakers: r.Breakers,
		}
		row.SetFailures(r.HandlerFailures)
		found[i] = &lease{row: row, handled: r.Handled, renewed: sent, slot: crashed, probe: probe}
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
		holds, err := renew(ctx, c, unknown, "")
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

// renew renews leases, and returns for each token whether it holds a lease; nothing for a row that is locked. It
// records handler as running; an empty name leaves what is recorded. It uses the journal's connections: a pool that is
// used up must not cost the leases.
func renew(ctx context.Context, c *dispatch.Consumer, all []*lease, handler string) (map[uuid.UUID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(max(c.Subscription.Lease/3, pgtx.MinRenewal), pgtx.StatementTimeout))
	defer cancel()
	held := make(map[uuid.UUID]bool, len(all))
	err := c.Journal.InTx(ctx, func(ctx context.Context, tx *pgtx.Tx) error {
		return renewRows(ctx, coredb.New(tx), rowsOf(all), handler, held)
	})
	if len(all) > 1 && pgtx.RowFault(err) { // the lease of one must not cost the others theirs
		for i, l := range all {
			one, err := renew(ctx, c, all[i:i+1], handler)
			if err != nil {
				c.Log.WarnContext(ctx, "the lease could not be renewed",
					append(pgtx.LogError(err), pgtx.LogEventID, l.row.Envelope.EventID)...)
			}
			maps.Copy(held, one)
		}
		return held, nil
	}
	if err != nil {
		return nil, fmt.Errorf("renew leases of %s: %w", c.Subscription.EventType, err)
	}
	return held, nil
}

// renewRows renews the leases of rows, which stay locked until the transaction ends, and sets in held which of them
// hold.
func renewRows(ctx context.Context, queries *coredb.Queries, rows []dispatch.Row, handler string,
	held map[uuid.UUID]bool) error {
	ids, times, tokens := dispatch.Keys(rows)
	found, err := queries.Heartbeat(ctx, coredb.HeartbeatParams{
		Ids: ids, OccurredAts: times, Tokens: tokens, Handlers: slices.Repeat([]string{handler}, len(rows)),
	})
	for _, f := range found {
		held[f.Token] = f.Held
	}
	return err
}

// release gives leases back as if they had never been claimed, and returns the tokens of those it gave back. Rows that
// are locked, perhaps by a COMMIT whose answer was lost, stay in flight.
func release(ctx context.Context, c *dispatch.Consumer, all []*lease) (tokens []uuid.UUID, err error) {
	ids, times, held := dispatch.Keys(rowsOf(all))
	err = c.Journal.InTx(ctx, func(ctx context.Context, tx *pgtx.Tx) (err error) {
		tokens, err = coredb.New(tx).Release(ctx, coredb.ReleaseParams{Ids: ids, OccurredAts: times, Tokens: held})
		return err
	})
	return tokens, err
}
