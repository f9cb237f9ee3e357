package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// leased dispatches a consumer's events under leases: a claim commits them as in flight, their handlers run outside any
// transaction while a heartbeat renews the leases, and a completer settles the results. docs/decisions/0011.
type leased struct {
	*consumer
	waking

	completer *completer
	claiming  bool
	apart     bool                 // the last claim was of rows with crashes
	leases    map[uuid.UUID]*lease // in flight with us, by token: each takes one place of the concurrency
	begun     sync.Once            // the completer and the heartbeat run
	last      context.Context      // ends when Stop gives up; set before the first lease
	over      chan struct{}        // closed when no lease is left
}

func newLeased(c *consumer) *leased {
	return &leased{
		consumer: c, waking: newWaking(), completer: newCompleter(c), leases: make(map[uuid.UUID]*lease), over: make(chan struct{}),
	}
}

// begin starts what settles and renews leases, until await. Ctx is done when the worker's grace is over.
func (c *leased) begin(ctx context.Context) {
	detached := context.WithoutCancel(ctx)
	keep, end := context.WithCancel(detached)
	last, endLast := context.WithCancel(detached)
	c.completer.keep, c.last = keep, last
	context.AfterFunc(ctx, func() {
		time.AfterFunc(keepFor, end)
		time.AfterFunc(giveUpAfter, endLast)
	})
	for range completers {
		go c.completer.run()
	}
	go c.beat(detached)
}

func (c *leased) await() {
	c.wait.Wait()
	c.release()
	close(c.completer.results)
	close(c.over)
}

func (c *leased) wake(ctx context.Context, crashed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again = true
	c.crashed = c.crashed || crashed
	c.claimMore(ctx)
}

// claimMore starts the claims, unless they go on or there is nothing to claim or no place. C is locked.
func (c *leased) claimMore(ctx context.Context) {
	if c.claiming || c.stopped || !c.again && !c.crashed || len(c.leases) >= c.subscription.Concurrency {
		return
	}
	c.claiming = true
	c.wait.Go(func() { c.claim(ctx) })
}

// next says how to claim: up to limit rows, crashed or others. No limit: not at all.
func (c *leased) next(ctx context.Context) (limit int, crashed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.subscription.Concurrency - len(c.leases)
	if free > 0 && !c.stopped {
		// by turns, so that neither kind holds the other up
		if c.crashed && (!c.apart || !c.again) && c.journal.turn.take(c.consumer, func() { c.wake(ctx, true) }) {
			c.crashed, c.apart = false, true // a look may find more while this one claims
			return 1, true
		}
		if c.again {
			c.again, c.apart = false, false
			return min(free, c.subscription.BatchSize), false
		}
	}
	c.claiming = false
	return 0, false
}

// claim claims until nothing is left or every place is taken.
func (c *leased) claim(ctx context.Context) {
	var wait backoff
	for limit, crashed := c.next(ctx); limit > 0; limit, crashed = c.next(ctx) {
		found, err := c.lease(ctx, limit, crashed)
		if crashed && len(found) == 0 {
			c.journal.turn.giveBack() // otherwise drop does
		}
		c.hold(ctx, found)
		c.mu.Lock()
		switch {
		case err != nil:
			c.again = true
			c.crashed = c.crashed || crashed
			c.doubt.raise()
		case crashed:
			c.crashed = c.crashed || len(found) > 0
		default:
			c.again = c.again || len(found) == limit || payload(found) >= batchBytes/2 // or the claim ended early
		}
		doubted := err == nil && len(found) == 0 && !crashed && c.doubt.lessen()
		c.again = c.again || doubted
		c.mu.Unlock()
		switch {
		case err != nil && ctx.Err() == nil:
			c.tryLater(ctx, wait.next(), c.stop, err)
		case doubted:
			pause(ctx, doubtPause, c.stop)
		default:
			wait = backoff{}
		}
	}
}

// lease claims up to limit rows for the length of a lease. It may return rows and an error.
func (c *leased) lease(ctx context.Context, limit int, crashed bool) ([]*lease, error) {
	d := &dispatchTx{consumer: c.consumer}
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.end()
	if err := d.measure(ctx); err != nil {
		return nil, err
	}
	// not to be broken off between the claim and the answer: nobody would know of the leases
	detached := context.WithoutCancel(ctx)
	sent := time.Now()
	found, err := d.takeLeases(detached, limit, crashed)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, l := range found {
		l.renewed = sent
	}
	if err = d.commit(detached); err == nil {
		return found, nil
	}
	if answered(err) {
		return nil, err
	}
	d.end()
	return c.confirm(ctx, found), err
}

func payload(leases []*lease) (bytes int) {
	for _, l := range leases {
		bytes += len(l.envelope.Payload)
	}
	return bytes
}

func (d *dispatchTx) takeLeases(ctx context.Context, limit int, crashed bool) ([]*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	names := make([]string, len(d.handlers))
	for i, r := range d.handlers {
		names[i] = r.Name
	}
	rows, err := d.queries.Lease(ctx, coredb.LeaseParams{
		Generation: int64(d.generation), EventType: d.subscription.EventType, RowLimit: int32(limit),
		LeaseSeconds: d.subscription.Lease.Seconds(), Worker: d.worker, Handlers: names, Floor: d.floor.get(), Crashed: crashed,
	})
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", d.subscription.EventType, err)
	}
	found := make([]*lease, len(rows))
	for i, r := range rows {
		row := claimedRow(coredb.ClaimRow{
			EventID: r.EventID, EventType: r.EventType, EventVersion: r.EventVersion, OccurredAt: r.OccurredAt, Source: r.Source,
			Target: r.Target, ContentClass: r.ContentClass, WorkspaceID: r.WorkspaceID, Payload: r.Payload,
			IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext, Attempts: r.Attempts - 1,
			HandlerFailures: r.HandlerFailures, Crashes: r.Crashes,
		})
		row.token = r.ClaimToken
		found[i] = &lease{claimed: row, handled: r.Handled}
	}
	return found, nil
}

// confirm finds out which of the rows are ours, of a claim whose answer was lost. Its commit may still
// be on its way. A worker that stops goes on asking, at the same pace, until its grace is over: what it
// does not know of it cannot give back.
func (c *leased) confirm(ctx context.Context, unknown []*lease) (ours []*lease) {
	var wait backoff
	for doubted := doubt(maxDoubted); len(unknown) > 0 && ctx.Err() == nil; {
		sent := time.Now()
		held, err := c.renew(ctx, unknown, make([]string, len(unknown)))
		if err != nil {
			if sent.Sub(unknown[0].renewed) > c.subscription.Lease {
				break
			}
			pause(ctx, wait.next(), nil)
			continue
		}
		unknown = slices.DeleteFunc(unknown, func(l *lease) bool {
			if held[l.token] {
				l.renewed = sent
				ours = append(ours, l)
			}
			return held[l.token]
		})
		if len(unknown) == 0 || !doubted.lessen() {
			break
		}
		pause(ctx, doubtPause, nil)
	}
	return ours
}

// hold begins the work on rows that are now in flight with us.
func (c *leased) hold(ctx context.Context, found []*lease) {
	if len(found) == 0 {
		return
	}
	c.begun.Do(func() { c.begin(ctx) })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range found {
		work, cancel := context.WithCancelCause(ctx)
		l.cancel = cancel
		c.leases[l.token] = l
		if c.stopped {
			cancel(events.ErrStopping) // before it begins
		}
		c.wait.Go(func() {
			defer cancel(nil)
			if !c.work(work, l) {
				c.drop(ctx, l)
			}
		})
	}
}

// drop gives the place of l free, and its turn.
func (c *leased) drop(ctx context.Context, l *lease) {
	c.mu.Lock()
	delete(c.leases, l.token)
	c.crashed = c.crashed || l.crashes > 0
	c.mu.Unlock()
	if l.crashes > 0 {
		c.journal.turn.giveBack()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claimMore(ctx)
}
