package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

const (
	// completers and singles are how many transactions of a consumer settle batches, and single results.
	completers = 2
	singles    = 2
	maxBatch   = 100 // results in a batch
	// maxTries is how often a result is tried by itself: its handler may have taken an hour.
	maxTries = 10
)

// result is what a handler of a lease has done, or what becomes of the lease's row.
type result struct {
	lease      *lease
	handler    events.Registration // that was executed; without a name: none
	completion events.Completion   // nil: it writes nothing
	// What becomes of the row; neither: it stays in flight, as other handlers have still to run.
	delivered bool               // every handler has handled it
	decision  *dispatch.Decision // it is retried or failed
	waiting   string             // it waits for the breaker of this handler
	lost      error              // errLost, if the last transaction found that the lease is lost
	reply     chan error
}

// completer settles the results of a consumer: many in one transaction, all or none, and after an error each by itself.
type completer struct {
	consumer *dispatch.Consumer
	results  chan *result
	single   chan struct{}   // has one element for each single result that is being settled
	flush    context.Context // ends with the time for settling; set before the first result
}

// begun returns the name of the handler that was executed.
func (r *result) begun() []string {
	if r.handler.Name == "" {
		return nil
	}
	return []string{r.handler.Name}
}

func newCompleter(c *dispatch.Consumer) *completer {
	return &completer{consumer: c, results: make(chan *result), single: make(chan struct{}, singles)}
}

// settle commits r, and returns once that is decided. [errLost] drops r, and [errNoTime] leaves it to be released; any
// other error is a failure of r's handler. Ctx is that of the work on the lease.
func (c *completer) settle(ctx context.Context, r *result) error {
	r.reply = make(chan error, 1)
	select {
	case c.results <- r:
	case <-c.flush.Done():
		return errNoTime
	}
	if err := <-r.reply; err != nil {
		return c.settleSingle(ctx, r)
	}
	return r.lost
}

// run settles batches until results is closed.
func (c *completer) run() {
	for first := range c.results {
		batch := c.gather(first)
		err := c.commit(batch, c.limit(1))
		if err != nil {
			c.consumer.Log.DebugContext(c.flush, "batch rolled back; its results are settled one by one",
				pgtx.LogRows, len(batch), pgtx.LogErrorClass, dispatch.Classify(err, 0).Class)
		}
		for _, r := range batch {
			r.reply <- err
		}
	}
}

// gather adds the results that wait to the first.
func (c *completer) gather(first *result) []*result {
	batch := []*result{first}
	for len(batch) < maxBatch {
		select {
		case r, ok := <-c.results:
			if !ok {
				return batch
			}
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// settleSingle settles r by itself. An error of its completion is final, unless it costs no attempt or is a timeout of
// the first, short try.
func (c *completer) settleSingle(ctx context.Context, r *result) error {
	var wait pgtx.Backoff
	for try := 1; ; try++ {
		err := c.trySingle(r, c.limit(try))
		if err == nil {
			return r.lost
		}
		if c.consumer.GiveUp(c.flush, r.lease.row, r.begun(), err) {
			return errLost
		}
		failure := dispatch.Classify(err, 0)
		tooShort := failure.Class == pgtx.ClassTimeout && c.limit(try) < c.limit(try+1)
		switch {
		case errors.Is(err, dispatch.ErrCompletion) && !failure.Free() && !tooShort:
			return err
		case c.flush.Err() != nil:
			return errNoTime
		case errors.Is(context.Cause(ctx), events.ErrLeaseLost):
			return errLost
		case try == maxTries:
			return err
		}
		delay := wait.Next()
		c.consumer.Log.WarnContext(ctx, "results could not be settled and are retried; no attempt counted",
			append(r.lease.logError(err), pgtx.LogDelay, delay.Milliseconds())...)
		pgtx.Pause(c.flush, delay, nil)
	}
}

func (c *completer) trySingle(r *result, limit time.Duration) error {
	select {
	case c.single <- struct{}{}:
		defer func() { <-c.single }()
		return c.commit([]*result{r}, limit)
	case <-c.flush.Done():
		return errNoTime
	}
}

// limit bounds a transaction that settles. A lease is renewed three times in its length, but not while its row is
// locked.
func (c *completer) limit(try int) time.Duration {
	longest := min(c.consumer.Subscription.Lease/4, pgtx.MaxSettle)
	if try == 1 {
		return min(longest, pgtx.QuickSettle)
	}
	return longest
}

// commit settles a batch in one transaction, and notes which leases are lost, of which nothing is written. It writes
// the rows, and thereby locks them, before a completion runs, so that the holder of an expired lease finds out before
// it writes.
func (c *completer) commit(batch []*result, limit time.Duration) error {
	t, err := c.begin()
	if err != nil {
		return err
	}
	defer t.End()
	ctx, cancel := context.WithTimeout(c.flush, limit)
	defer cancel()
	t.Shared = len(batch) > 1
	ms := max(limit.Milliseconds(), 2) // the server ends the transaction if this process does not
	if err := t.Exec(ctx, fmt.Sprintf("set local lock_timeout = %d; set local statement_timeout = %d; set local "+
		"idle_in_transaction_session_timeout = %[2]d", ms/2, ms)); err != nil {
		return fmt.Errorf("bound the transaction: %w", err)
	}
	if err := writeRows(ctx, t, batch); err != nil {
		return err
	}
	keys := dispatch.NewDedupKeys(len(batch))
	for i, r := range batch {
		if r.lost == nil && r.handler.Name != "" {
			keys.Add(r.handler.Name, &r.lease.row, i)
		}
	}
	if err := t.ClaimKeys(ctx, keys); err != nil {
		return err
	}
	completed, err := complete(ctx, t, batch, keys, limit)
	if err != nil {
		return dispatch.CompletionFailed(ctx, t, err)
	}
	if err := t.Commit(ctx); err != nil {
		if completed && pgtx.Answered(err) { // an error of a deferred constraint
			err = fmt.Errorf("%w: %w", dispatch.ErrCompletion, dispatch.ExplainTimeout(ctx, limit, err))
		}
		return err
	}
	c.consumer.Report(ctx, t.Settled)
	return nil
}

// begin waits for a connection as long as there is time for settling: an outage costs no try.
func (c *completer) begin() (*dispatch.Tx, error) {
	var wait pgtx.Backoff
	for {
		t, err := dispatch.Begin(c.flush, c.consumer, nil)
		if err == nil || c.flush.Err() != nil {
			return t, err
		}
		c.consumer.TryLater(c.flush, min(wait.Next(), pgtx.FlushTimeout/2), nil, err)
	}
}

// writeRows writes what becomes of the rows, and notes which leases are lost.
func writeRows(ctx context.Context, t *dispatch.Tx, batch []*result) (err error) {
	held := make(map[uuid.UUID]bool, len(batch))
	var kept, delivered []dispatch.Row
	for _, r := range batch {
		switch row := r.lease.row; {
		case r.delivered:
			delivered = append(delivered, row)
		case r.waiting != "":
			if held[row.Token], err = dispatch.Waits(ctx, t, r.waiting, row); err != nil {
				return err
			}
		case r.decision == nil:
			kept = append(kept, row)
		default:
			if held[row.Token], err = dispatch.Record(ctx, t, row, *r.decision); err != nil {
				return err
			}
		}
	}
	if len(kept) > 0 {
		if err := renewRows(ctx, t.Queries, kept, "", held); err != nil {
			return fmt.Errorf("%w: renew leases: %w", dispatch.ErrSettle, err)
		}
		for _, row := range kept {
			if _, known := held[row.Token]; !known {
				return errRowLocked
			}
		}
	}
	if len(delivered) > 0 {
		ids, times, tokens := dispatch.Keys(delivered)
		settled, err := t.Queries.DeliverLeased(ctx, coredb.DeliverLeasedParams{Ids: ids, OccurredAts: times, Tokens: tokens})
		if err != nil {
			return fmt.Errorf("%w as delivered: %w", dispatch.ErrSettle, err)
		}
		for _, token := range settled {
			held[token] = true
		}
	}
	for _, r := range batch {
		r.lost = nil
		if !held[r.lease.row.Token] {
			r.lost = errLost
		} else if r.delivered {
			t.Delivered(&r.lease.row)
		}
	}
	return nil
}

// complete runs the completions whose dedup keys were free, and reports whether any ran. A key that was taken means
// that another execution was completed.
func complete(ctx context.Context, t *dispatch.Tx, batch []*result, keys *dispatch.DedupKeys,
	limit time.Duration) (ran bool, err error) {
	for i, r := range batch {
		if r.completion == nil || !keys.Runs(r.handler.Name, &r.lease.row, i) {
			continue
		}
		ran = true
		about := []events.Envelope{r.lease.row.Envelope}
		traced := telemetry.Continue(ctx, r.lease.row.Envelope.TraceContext) // of what the completion publishes
		traced = events.WithDelivery(traced, r.lease.row.Delivery())
		if err := t.Call(traced, r.handler, min(limit, r.handler.CallTimeout()), about, r.completion); err != nil {
			return ran, err
		}
	}
	if !ran {
		return false, nil
	}
	if err := t.AsWorker(ctx); err != nil {
		return ran, fmt.Errorf("returned nil but left the transaction unusable: %w", err)
	}
	return ran, nil
}
