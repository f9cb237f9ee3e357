package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// completers and singles are how many transactions of a consumer settle batches, and single results.
	completers = 2
	singles    = 2
	firstBatch = 10 // results in a batch at first
	maxBatch   = 100
	// maxTries is how often a result is tried by itself; what it completes may have taken an hour.
	maxTries = 10
	// quickLimit bounds a batch, and the first try of a single result: others wait for it. maxLimit bounds the rest.
	quickLimit = 2 * time.Second
	maxLimit   = 30 * time.Second
	// keepFor is how long a worker whose grace is over goes on to settle: as long as handlers may go on, and a second.
	keepFor = abandonAfter + time.Second
)

// result is what a handler of a lease has done, or what becomes of the lease's row.
type result struct {
	lease      *lease
	handler    events.Registration // that executed; without a name: none
	completion events.Completion   // nil: it writes nothing
	row        rowOutcome
	decision   verdict // of rowDecided
	reply      chan error
}

// rowOutcome says what a result makes of its row.
type rowOutcome int

const (
	rowKept      rowOutcome = iota // in flight: other handlers have still to run
	rowDelivered                   // all handlers have handled it
	rowDecided                     // retried or failed
)

var (
	errLeaseLost = errors.New("the lease is lost, or its event is settled already")
	errNoTime    = errors.New("the worker stops, and there was no time to settle it")
	errRowLocked = errors.New("another transaction has locked the row")
)

// completer settles the results of a consumer: many in one transaction, all or none; after an error each by itself.
type completer struct {
	*consumer
	results chan *result
	single  chan struct{}   // holds one element for each single result that is being settled
	size    atomic.Int32    // of the next batch, at most
	keep    context.Context // ends with the time for settling; set before the first result
}

func newCompleter(c *consumer) *completer {
	completer := &completer{consumer: c, results: make(chan *result), single: make(chan struct{}, singles)}
	completer.size.Store(firstBatch)
	return completer
}

// settle commits r, and returns once that is decided. [errLeaseLost] drops r, [errNoTime] leaves it to be released; any
// other error is a failure of r's handler. Ctx is that of the work on the lease.
func (c *completer) settle(ctx context.Context, r *result) error {
	r.reply = make(chan error, 1)
	select {
	case c.results <- r:
	case <-c.keep.Done():
		return errNoTime
	}
	if err := <-r.reply; err == nil || errors.Is(err, errLeaseLost) {
		return err
	}
	return c.settleSingle(ctx, r)
}

// run settles batches until results is closed.
func (c *completer) run() {
	for first := range c.results {
		batch := c.gather(first)
		lost, err := c.commit(c.keep, batch, c.limit(1))
		if err == nil {
			c.size.Store(min(2*max(c.size.Load(), int32(len(batch))), maxBatch))
		} else {
			c.size.Store(max(int32(len(batch)/2), 1))
			c.log.DebugContext(c.keep, "batch undone, its results are settled one at a time", logEventType, c.subscription.EventType,
				logRows, len(batch), logErrorClass, classify(err, 0).class)
		}
		for _, r := range batch {
			if err == nil && lost[r] {
				r.reply <- errLeaseLost
			} else {
				r.reply <- err
			}
		}
	}
}

// gather adds the results that wait to the first.
func (c *completer) gather(first *result) []*result {
	batch := []*result{first}
	for len(batch) < int(c.size.Load()) {
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

// settleSingle settles r by itself. An error of its completion is final, unless it is free or came within the first,
// short limit.
func (c *completer) settleSingle(ctx context.Context, r *result) error {
	var wait backoff
	for try := 1; ; try++ {
		err := c.trySingle(r, c.limit(try))
		if err == nil || errors.Is(err, errLeaseLost) {
			return err
		}
		failure := classify(err, 0)
		tooShort := failure.class == timeoutClass && c.limit(try) < c.limit(try+1)
		switch {
		case errors.Is(err, errCompletion) && failure.disposition != free && !tooShort:
			return err
		case c.keep.Err() != nil:
			return errNoTime
		case errors.Is(context.Cause(ctx), events.ErrLeaseLost):
			return errLeaseLost
		case try == maxTries:
			return err
		}
		delay := wait.next()
		c.log.WarnContext(ctx, "settling interrupted, no attempt counted", append(r.lease.logged(err), logDelay, delay.Milliseconds())...)
		pause(c.keep, delay, nil)
	}
}

func (c *completer) trySingle(r *result, limit time.Duration) error {
	select {
	case c.single <- struct{}{}:
		defer func() { <-c.single }()
	case <-c.keep.Done():
		return errNoTime
	}
	lost, err := c.commit(c.keep, []*result{r}, limit)
	if err == nil && lost[r] {
		return errLeaseLost
	}
	return err
}

// limit bounds a transaction that settles: a lease can be renewed three times in its length, but not while its row is locked.
func (c *completer) limit(try int) time.Duration {
	longest := min(c.subscription.Lease/4, maxLimit)
	if try == 1 {
		return min(longest, quickLimit)
	}
	return longest
}

// commit settles a batch in one transaction, and returns those whose lease is lost, of which nothing is written. The rows are
// written, and so locked, before a completion runs: an expired holder finds out before it writes.
func (c *completer) commit(ctx context.Context, batch []*result, limit time.Duration) (lost map[*result]bool, err error) {
	d := &dispatchTx{consumer: c.consumer, shared: len(batch) > 1}
	if err := c.begin(ctx, d); err != nil {
		return nil, err
	}
	defer d.end()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := d.exec(ctx, boundedBy(limit)); err != nil {
		return nil, fmt.Errorf("bound the transaction: %w", err)
	}
	held, err := d.writeRows(ctx, batch)
	if err != nil {
		return nil, err
	}
	lost = make(map[*result]bool)
	var keys keyClaims
	for i, r := range batch {
		lost[r] = !held[r.lease.token]
		if !lost[r] && r.handler.Name != "" {
			keys.add(r.handler, r.lease.claimed, i)
		}
	}
	if len(keys.first) > 0 {
		if err := d.claimKeys(ctx, &keys); err != nil {
			return nil, err
		}
	}
	completed, err := d.completeAll(ctx, batch, &keys, limit)
	if err != nil {
		return nil, err
	}
	if err := d.commit(ctx); err != nil {
		if completed && answered(err) {
			err = fmt.Errorf("%w: %w", errCompletion, late(ctx, limit, err)) // what is deferred to COMMIT
		}
		return nil, err
	}
	c.report(ctx, d.settled)
	return lost, nil
}

// begin waits for a connection as long as ctx lasts: an outage costs no try.
func (c *completer) begin(ctx context.Context, d *dispatchTx) error {
	var wait backoff
	for {
		err := d.begin(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		c.tryLater(ctx, min(wait.next(), keepFor/2), nil, err)
	}
}

// boundedBy are settings by which the server ends a transaction that its client does not.
func boundedBy(limit time.Duration) string {
	return fmt.Sprintf("set local lock_timeout = %d; set local statement_timeout = %d; set local idle_in_transaction_session_timeout = %[2]d",
		max(limit.Milliseconds()/2, 1), max(limit.Milliseconds(), 1))
}

// writeRows writes what becomes of the rows, and returns the tokens whose lease is held.
func (d *dispatchTx) writeRows(ctx context.Context, batch []*result) (held map[uuid.UUID]bool, err error) {
	held = make(map[uuid.UUID]bool, len(batch))
	var kept, delivered []claimed
	for _, r := range batch {
		switch row := r.lease.claimed; r.row {
		case rowKept:
			kept = append(kept, row)
		case rowDelivered:
			delivered = append(delivered, row)
		case rowDecided:
			if held[row.token], err = d.recordLeased(ctx, row, r.decision); err != nil {
				return nil, err
			}
		}
	}
	if len(kept) > 0 {
		if err := heartbeat(ctx, d.queries, kept, make([]string, len(kept)), held); err != nil {
			return nil, fmt.Errorf("renew leases: %w", err)
		}
		for _, row := range kept {
			if _, known := held[row.token]; !known {
				return nil, errRowLocked
			}
		}
	}
	if len(delivered) == 0 {
		return held, nil
	}
	ids, times := namesOf(delivered)
	tokens, err := d.queries.DeliverLeased(ctx, coredb.DeliverLeasedParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(delivered)})
	if err != nil {
		return nil, fmt.Errorf("settle as delivered: %w", err)
	}
	for _, token := range tokens {
		held[token] = true
	}
	for _, row := range delivered {
		if held[row.token] {
			d.settled = append(d.settled, Settlement{Envelope: row.envelope, Outcome: Delivered, Attempts: row.attempts + 1})
		}
	}
	return held, nil
}

// completeAll runs the completions whose dedup keys were free, and reports whether any ran. A key that was taken means that
// another execution was completed.
func (d *dispatchTx) completeAll(ctx context.Context, batch []*result, keys *keyClaims, limit time.Duration) (ran bool, err error) {
	for i, r := range batch {
		if r.completion == nil || !keys.runs(r.handler, r.lease.claimed, i) {
			continue
		}
		ran = true
		if err := d.complete(ctx, r, limit); err != nil {
			return ran, err
		}
	}
	if !ran {
		return false, nil
	}
	if err := d.act(ctx, workerRole, noWorkspace); err != nil {
		return ran, d.completionFailed(ctx, fmt.Errorf("returned nil but left the transaction unusable: %w", err))
	}
	return ran, nil
}

// complete runs one completion as its context's role.
func (d *dispatchTx) complete(ctx context.Context, r *result, limit time.Duration) error {
	role, err := scopeRole(r.handler.Scope())
	if err != nil {
		return d.completionFailed(ctx, err)
	}
	if err := d.act(ctx, role, r.lease.envelope.WorkspaceID); err != nil {
		return d.completionFailed(ctx, fmt.Errorf("act as %s: %w", role, err))
	}
	limit = min(limit, r.handler.CallTimeout())
	err = d.withHandlerTx(ctx, limit, func(ctx context.Context, tx *handlerTx) error { return late(ctx, limit, r.completion(ctx, tx)) })
	if err == nil {
		return nil
	}
	d.logPanic(ctx, r.handler, []events.Envelope{r.lease.envelope}, err)
	return d.completionFailed(ctx, err)
}

// completionFailed wraps an error of a completion. It is free when the network, and not a limit, took the connection.
func (d *dispatchTx) completionFailed(ctx context.Context, err error) error {
	if d.lost() && !d.spoiled && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	return fmt.Errorf("%w: %w", errCompletion, err)
}

// answered reports whether the server has answered a COMMIT with an error, so that it is rolled back for sure.
func answered(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL"
}
