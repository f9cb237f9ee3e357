package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// claim is how a runner claims.
type claim struct {
	limit         int       // zero: not at all
	checkDeferred bool      // check deferred constraints after each handler
	crashed       bool      // only rows with crashes, of which a process runs one at a time
	here          bool      // handle the rows here, whatever path events take
	keptBy        time.Time // not zero: the same, but only rows that were sent before and were due by then
	pass          int       // run the row behind so many, which could not be settled
	probe         string    // run an event that waits for the breaker of this handler
	probed        *Probed   // what became of that
}

// claimResult is the result of one claim.
type claimResult struct {
	rows          int       // claimed
	payload       int       // bytes of them
	left          int       // of them, to be run one by one
	checkDeferred bool      // and with deferred constraints checked after each handler
	here          bool      // they could not be marked as sent: the next claim handles them here
	keptBy        time.Time // some were sent or refused and stay, the last due then: the next claim handles those
	undone        bool      // a batch was rolled back
	deadlock      bool      // because of a deadlock
	lost          bool      // the connection was lost: its backend may hold the rows a little longer
	open          bool      // a breaker is open: the rows of a batch need not run one by one
	outside       bool      // handlers that act outside were called, or would have been
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
	for i := range rows {
		result.payload += len(rows[i].Envelope.Payload)
	}
	open, called := c.ReadBreakers(rows[0].Breakers, how.probe)
	result.open, result.outside = len(open) > 0, actOutside(called)
	if !how.crashed && !how.here && how.keptBy.IsZero() && !result.open && how.probe == "" {
		sent, kept, err := t.relay(ctx, rows)
		if err != nil && ctx.Err() == nil {
			c.logRollback(ctx, err, len(rows), t.Lost())
			result.lost = t.Lost()
		}
		if sent || err != nil {
			result.here, result.keptBy = err != nil, kept
			return result, ctx.Err()
		}
	}
	last := rows[len(rows)-1]
	clean := 0 // how many rows have not failed yet; they are moved to the front
	for i := range rows {
		row := &rows[i]
		if len(row.Failures) == 0 && row.Corrupt == nil && len(c.handlersOf(&row.Envelope)) > 0 &&
			(!result.open || !row.Delivery().Replay) { // its handler with an open breaker may have handled it
			if i > clean {
				rows[clean], rows[i] = rows[i], rows[clean]
			}
			clean++
		}
	}
	t.noteAgain(rows)
	unhold := c.hold(rows)
	defer unhold()
	switch {
	case len(rows) == 1 || how.pass > 0:
		result.left = len(rows) - 1
		single := &singleRun{tx: t, row: last, unhold: unhold, checkDeferred: how.checkDeferred, open: open,
			probe: how.probe, probed: how.probed}
		if err = single.run(ctx, &result); err != nil {
			t.End()
			if c.GiveUp(ctx, last, single.begun, err) {
				return result, nil
			}
		}
	case clean > 1 && !result.outside:
		result.left = len(rows) - clean
		err = runBatch(ctx, t, rows[:clean], called, open, &result)
	default: // one of them may be slow, and the others would wait for it
		result.left = len(rows)
	}
	result.settled = t.Settled
	return result, err
}

func claimRows(ctx context.Context, t *Tx, how claim) ([]Row, error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	c := t.consumer
	found, err := t.Queries.ClaimRows(ctx, coredb.ClaimParams{
		Generation: int64(c.Journal.Generation), EventType: c.Subscription.EventType,
		RowLimit:  int32(how.limit), //nolint:gosec // bounded
		Watermark: c.Watermark.Get(), Worker: c.Journal.Worker, Crashed: how.crashed, KeptBy: how.keptBy,
		Probe: how.probe,
	})
	var rows []Row
	if err == nil {
		rows, err = readRows(found, how.limit, c.Subscription.EventType)
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrClaim, c.Subscription.EventType, err)
	}
	c.Claimed(ctx, rows)
	return rows, nil
}

// runBatch runs the handlers of several rows without savepoints, many of which would slow down every session of the
// server. Any failure undoes the batch, and its rows then run one by one.
func runBatch(ctx context.Context, t *Tx, rows []Row, called []events.Registration, open []string,
	result *claimResult) error {
	err := tryBatch(ctx, t, rows, called, open)
	switch {
	case err == nil || journalFailed(err):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("stopped in a batch: %w", ctx.Err())
	}
	t.Settled = nil
	result.undone, result.left, result.lost = true, result.rows, t.Lost()
	result.deadlock = t.consumer.logRollback(ctx, err, len(rows), result.lost)
	return nil
}

// logRollback logs that a batch of n rows was rolled back, and reports whether a deadlock was the reason.
func (c *Consumer) logRollback(ctx context.Context, err error, n int, lost bool) (deadlock bool) {
	class := Classify(err, 0).Class
	deadlock = class == pgtx.ClassDeadlock
	log := c.Log.With(pgtx.LogRows, n, pgtx.LogErrorClass, class)
	if failed, ok := errors.AsType[handlerError](err); ok {
		log = log.With(pgtx.LogHandler, failed.name)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		log = log.With(pgtx.LogSQLState, pg.Code)
	}
	switch {
	case lost:
		log.WarnContext(ctx, "connection lost in a batch, no attempt counted")
	case deadlock:
		log.WarnContext(ctx, "deadlock: batch rolled back, its rows run one by one; make handlers lock rows in one "+
			"order, as EffectKey of their registration does")
	default:
		level := slog.LevelDebug
		batches, warn := c.countRollback(time.Now())
		if warn {
			level = slog.LevelWarn
		}
		log.Log(ctx, level, "batch rolled back; its rows run one by one, which is slower (docs/adding-an-event.md)",
			pgtx.LogRolledBack, batches)
	}
	return deadlock
}

// handlerError is the error of a handler in a batch.
type handlerError struct {
	error
	name string
}

func (e handlerError) Unwrap() error { return e.error }

func tryBatch(ctx context.Context, t *Tx, rows []Row, called []events.Registration, open []string) error {
	t.writeEntry(ctx, rows)
	return handleAll(ctx, t, rows, called, settleOrWait(open))
}

// handleAll runs handlers for rows without savepoints, settles the rows and commits.
func handleAll(ctx context.Context, t *Tx, rows []Row, handlers []events.Registration,
	settle func(context.Context, *Tx, []Row) error) error {
	c := t.consumer
	t.Shared = true
	keys := NewDedupKeys(len(rows) * len(handlers))
	for i := range rows {
		for _, r := range handlers {
			if handles(r, &rows[i].Envelope) {
				keys.Add(r.Name, &rows[i], i)
			}
		}
	}
	if err := t.ClaimKeys(ctx, keys); err != nil {
		return err
	}
	started := time.Now()
	for _, r := range handlers {
		for _, group := range byWorkspace(r, rows, func(i int) bool { return keys.Runs(r.Name, &rows[i], i) }) {
			if err := t.callHandler(ctx, r, group); err != nil {
				return handlerError{err, r.Name}
			}
		}
	}
	if err := t.AsWorker(ctx); err != nil {
		return fmt.Errorf("a handler returned nil but left the transaction unusable: %w", err)
	}
	if err := settle(ctx, t, rows); err != nil {
		return err
	}
	timeout := pgtx.BatchCommitTimeout
	if len(rows) == 1 {
		timeout = pgtx.StatementTimeout
	}
	committing, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := t.Commit(committing); err != nil {
		return err
	}
	for i := range rows {
		for _, r := range handlers {
			if keys.Runs(r.Name, &rows[i], i) {
				c.Observed(r, rows[i].Envelope.EventID, nil)
				c.LogHandled(ctx, r, &rows[i], started, nil)
			}
		}
	}
	return nil
}

// payloadField returns the value of a top-level field of a document; nil if there is none. What is wrong with the
// document, the handler reports.
func payloadField(document []byte, field string) []byte {
	d := jsontext.NewDecoder(bytes.NewBuffer(document), jsontext.AllowDuplicateNames(true))
	start, err := d.ReadToken()
	for err == nil && start.Kind() == '{' && d.PeekKind() == '"' {
		name, _ := d.ReadToken()
		if name.String() == field {
			value, _ := d.ReadValue()
			return value
		}
		err = d.SkipValue()
	}
	return nil
}

// byWorkspace groups the envelopes of the wanted rows by workspace. Groups, and the envelopes of each, are in the order
// of the rows, or, with an EffectKey, in the order of workspaces and keys.
func byWorkspace(r events.Registration, rows []Row, wanted func(i int) bool) (groups [][]events.Envelope) {
	place := make(map[uuid.NullUUID]int)
	for n := range rows {
		if !wanted(n) {
			continue
		}
		e := &rows[n].Envelope
		i, ok := place[e.WorkspaceID]
		if !ok {
			i = len(groups)
			place[e.WorkspaceID] = i
			groups = append(groups, nil)
			if i == 0 { // most batches are of one workspace
				groups[0] = make([]events.Envelope, 0, len(rows)-n)
			}
		}
		groups[i] = append(groups[i], *e)
	}
	if r.EffectKey == "" {
		return groups
	}
	slices.SortFunc(groups, func(a, b []events.Envelope) int {
		return bytes.Compare(a[0].WorkspaceID.UUID[:], b[0].WorkspaceID.UUID[:])
	})
	type keyed struct {
		key   []byte
		event events.Envelope
	}
	for _, group := range groups {
		all := make([]keyed, len(group))
		for i, e := range group {
			all[i] = keyed{payloadField(e.Payload, r.EffectKey), e}
		}
		slices.SortStableFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
		for i := range all {
			group[i] = all[i].event
		}
	}
	return groups
}
