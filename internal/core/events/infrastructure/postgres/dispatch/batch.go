package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// runBatch runs the handlers of several rows without savepoints, many of which would slow down every session of the
// server. Any failure undoes the batch, and its rows then run one by one.
func runBatch(ctx context.Context, t *Tx, rows []Row, result *claimResult) error {
	err := tryBatch(ctx, t, rows)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped in a batch: %w", ctx.Err())
	}
	if journalFailed(err) {
		return err
	}
	t.Settled = nil
	class := Classify(err, 0).class
	result.undone, result.left, result.deadlock, result.lost = true, result.rows, class == pgtx.ClassDeadlock, t.Lost()
	attributes := []any{pgtx.LogEventType, t.consumer.Subscription.EventType, pgtx.LogRows, len(rows),
		pgtx.LogErrorClass, class}
	if result.lost {
		t.consumer.Log.WarnContext(ctx, "connection lost in a batch, no attempt counted",
			append(attributes, pgtx.LogReason, err.Error())...)
	}
	t.consumer.Log.DebugContext(ctx, "batch undone, its rows run one by one", attributes...)
	return nil
}

func tryBatch(ctx context.Context, t *Tx, rows []Row) error {
	c := t.consumer
	t.Shared = true
	t.writeEntry(ctx, rows)
	var keys DedupKeys
	for i, row := range rows {
		for _, r := range c.handlersOf(row.Envelope) {
			keys.Add(r, row, i)
		}
	}
	if err := t.ClaimKeys(ctx, &keys); err != nil {
		return err
	}
	started := time.Now()
	for _, r := range c.Handlers {
		for _, group := range byWorkspace(rows, func(i int) bool { return keys.Runs(r, rows[i], i) }) {
			if err := t.callHandler(ctx, r, group); err != nil {
				return err
			}
		}
	}
	if err := t.AsWorker(ctx); err != nil {
		return fmt.Errorf("a handler returned nil but left the transaction unusable: %w", err)
	}
	if err := deliver(ctx, t, rows); err != nil {
		return err
	}
	committing, cancel := context.WithTimeout(ctx, pgtx.BatchCommitTimeout)
	defer cancel()
	if err := t.Commit(committing); err != nil {
		return err
	}
	for _, row := range rows {
		for _, r := range c.handlersOf(row.Envelope) {
			c.LogHandled(ctx, r, row, started, nil)
		}
	}
	return nil
}

// byWorkspace groups the envelopes of the wanted rows by workspace. Each group, and the groups, are in the order of the
// rows.
func byWorkspace(rows []Row, wanted func(i int) bool) [][]events.Envelope {
	var groups [][]events.Envelope
	place := make(map[uuid.NullUUID]int)
	for n, row := range rows {
		e := row.Envelope
		if !wanted(n) {
			continue
		}
		i, ok := place[e.WorkspaceID]
		if !ok {
			i = len(groups)
			place[e.WorkspaceID] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], e)
	}
	return groups
}
