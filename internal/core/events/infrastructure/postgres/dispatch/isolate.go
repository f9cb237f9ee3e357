package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Where an error comes from decides whether a row may be at fault.
var (
	ErrClaim  = errors.New("claim")  // is in the chain of an error of a claim
	ErrSettle = errors.New("settle") // is in the chain of an error of writing what becomes of a row
	errKept   = errors.New("a trigger or rule keeps the row as it is")
)

// Isolate gives up the rows that make a claim of up to limit rows fail, and those behind them, and reports whether it
// found any. Err is the claim's error.
func (c *Consumer) Isolate(ctx context.Context, err error, limit int, crashed bool) bool {
	if ctx.Err() != nil || !errors.Is(err, ErrClaim) {
		return false
	}
	again := c.tooOften(uuid.Nil, err)
	if !again && !pgtx.RowFault(err) && pgtx.ErrorClass(err) != pgtx.ClassTimeout {
		return false
	}
	step := "claim"
	if c.Subscription.Mode == events.Leased {
		step = "lease"
	}
	return c.giveUpAll(ctx, step, limit, crashed, again)
}

// giveUpAll gives up the due rows that make a step fail, up to limit rows that do not, and reports whether there was
// any. The step is one of core.outbox_isolate.
func (c *Consumer) giveUpAll(ctx context.Context, step string, limit int, crashed, again bool) bool {
	var given []Settlement
	err := pgtx.InTx(ctx, c.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
		rows, err := coredb.New(tx).Isolate(ctx, coredb.IsolateParams{
			Generation: int64(c.Journal.Generation), EventType: c.Subscription.EventType,
			RowLimit:  int32(limit), //nolint:gosec // bounded
			Watermark: c.Watermark.Get(), Crashed: crashed, Step: step, Again: again,
		})
		for _, row := range rows {
			e := events.Envelope{
				EventID: row.EventID, EventType: c.Subscription.EventType, Source: events.Scope(row.Source),
				Target: events.Scope(row.Target),
			}
			given = append(given, givenUp(Row{Envelope: e, Attempts: int(row.Attempts)}, row.Outcome, row.Reason))
		}
		return err
	})
	if err != nil {
		c.Log.WarnContext(ctx, "could not find out which rows cannot be claimed or settled", pgtx.LogError(err)...)
		return false
	}
	c.Report(ctx, given)
	return len(given) > 0
}

// GiveUp gives up a row that this worker claimed, if that row is why settling it failed with err, and reports whether
// it did. The transaction that failed is over. Begun are handlers that act outside it.
func (c *Consumer) GiveUp(ctx context.Context, row Row, begun []string, err error) bool {
	settling := (errors.Is(err, ErrSettle) || errors.Is(err, errCommit)) && !errors.Is(err, ErrCompletion)
	if ctx.Err() != nil || !settling {
		return false
	}
	again := c.tooOften(row.Envelope.EventID, err)
	if !again && !pgtx.RowFault(err) && !errors.Is(err, errKept) {
		return false
	}
	reason, outcome := pgtx.CleanText(err.Error(), pgtx.MaxErrorBytes/2), ""
	err = pgtx.InTx(ctx, c.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
		outcome, err = coredb.New(tx).GiveUp(ctx, coredb.GiveUpParams{
			ID: row.Envelope.EventID, OccurredAt: row.Envelope.OccurredAt, Token: row.Token, Reason: reason,
			Quarantine: again, Started: append([]string{}, begun...), // not null
		})
		return err
	})
	if err != nil {
		c.Log.WarnContext(ctx, "could not give up a row that cannot be settled",
			append(pgtx.LogError(err), pgtx.LogEventID, row.Envelope.EventID)...)
	}
	if err != nil || outcome == "" {
		return false
	}
	c.Report(ctx, []Settlement{givenUp(row, outcome, reason)})
	if Outcome(outcome) == Quarantined && row.Token == uuid.Nil { // more like it would hold up the others
		c.giveUpAll(ctx, "settle", maxUsable, false, again)
	}
	return true
}

// maxUsable is how many usable rows, of which it writes each, a search for rows that cannot be settled passes.
const maxUsable = 50

// enough is after how many errors of one event, or of claims without a success between, a row is given up for errors
// that usually pass.
const enough = 4

// failureCount counts the errors of an event.
type failureCount struct {
	errors  int
	settled int64 // events that the consumer had settled at the last one
}

// tooOften counts the errors of an event, or of claims (the nil UUID), and reports whether one that usually passes,
// like a lock's, comes too often. Those of the server's state and of connections always pass. An event's counts only if
// the consumer has settled another since the last: otherwise a lock on the table may stop them all.
func (c *Consumer) tooOften(id uuid.UUID, err error) bool {
	if pgtx.ServerState(err) || !pgtx.Answered(err) && pgtx.ErrorClass(err) != pgtx.ClassTimeout {
		return false
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if len(c.failures) > 1000 {
		clear(c.failures)
	}
	count, settled := c.failures[id], c.settled.Load()
	if id == uuid.Nil || count.errors == 0 || count.settled < settled {
		count = failureCount{count.errors + 1, settled}
	}
	if c.failures[id] = count; count.errors < enough {
		return false
	}
	delete(c.failures, id) // an operator may free the event
	return true
}

// Claimed records a successful claim.
func (c *Consumer) Claimed(ctx context.Context, rows []Row) {
	c.Telemetry.Claimed(ctx, len(rows), func(i int) time.Time { return rows[i].AvailableAt })
	c.Watermark.addClaimed(len(rows))
	c.progress.Add(int64(len(rows)))
	c.Mu.Lock()
	defer c.Mu.Unlock()
	delete(c.failures, uuid.Nil)
}

func givenUp(row Row, outcome, reason string) Settlement {
	return Settlement{
		Envelope: &row.Envelope, Outcome: Outcome(outcome), Attempts: row.Attempts, LastError: reason,
		classes: map[string]string{"outbox": "RowFault"},
	}
}
