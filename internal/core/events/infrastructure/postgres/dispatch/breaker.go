package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// tripsAt is how many distinct events of a handler must fail in a row, with errors that usually pass, for its breaker
// to open (docs/decisions/0024).
const tripsAt = 10

// breakers are what a consumer knows of the breakers of its handlers. The zero value is ready.
type breakers struct {
	mu     sync.Mutex
	failed map[string]map[uuid.UUID]bool // by handler: the events that have failed since one succeeded
	open   []string                      // handlers whose breakers are open, as far as is known
	// tripped are to be opened
	tripped []trip
}

// trip is a handler whose breaker is to be opened, and the failure that made it so.
type trip struct {
	handler string
	failure Failure
}

// succeeded takes in that a handler has handled an event.
func (b *breakers) succeeded(handler string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failed, handler)
}

// failedWith takes in a failure of a handler, and reports whether it is time to open its breaker. An error of the data,
// of the row, or of the server's state tells nothing of what the handler depends on.
func (b *breakers) failedWith(handler string, id uuid.UUID, f Failure) (trips bool) {
	if f.disposition != transient || f.ofData() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		b.failed = make(map[string]map[uuid.UUID]bool)
	}
	if b.failed[handler] == nil {
		b.failed[handler] = make(map[uuid.UUID]bool, tripsAt)
	}
	b.failed[handler][id] = true
	if trips = len(b.failed[handler]) >= tripsAt; trips {
		delete(b.failed, handler)
	}
	return trips
}

// ofData reports whether the failure tells of data, and not of what the handler depends on.
func (f Failure) ofData() bool { return f.Class == pgtx.ClassIntegrity }

// OpenBreakers returns the handlers whose breakers are open, as far as this process knows.
func (c *Consumer) OpenBreakers() []string {
	c.breakers.mu.Lock()
	defer c.breakers.mu.Unlock()
	return c.breakers.open
}

// SetOpenBreakers takes in which breakers are open.
func (c *Consumer) SetOpenBreakers(handlers []string) {
	c.breakers.mu.Lock()
	found := len(handlers) > 0 && len(c.breakers.open) == 0
	c.breakers.open = handlers
	c.breakers.mu.Unlock()
	if found {
		select {
		case c.Tripped <- struct{}{}:
		default:
		}
	}
}

// Observed takes in what became of a handler's call; f is its failure, or nil. [Consumer.OpenTripped] follows when the
// caller holds no connection.
func (c *Consumer) Observed(r events.Registration, id uuid.UUID, f *Failure) {
	b := &c.breakers
	if f == nil {
		b.succeeded(r.Name)
	} else if b.failedWith(r.Name, id, *f) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.tripped = append(b.tripped, trip{r.Name, *f})
	}
}

// OpenTripped opens the breakers of handlers of which too many events have failed.
func (c *Consumer) OpenTripped(ctx context.Context) {
	c.breakers.mu.Lock()
	tripped := c.breakers.tripped
	c.breakers.tripped = nil
	c.breakers.mu.Unlock()
	for _, t := range tripped {
		opened := false
		err := pgtx.InTx(context.WithoutCancel(ctx), c.Pool, pgtx.WorkerRole,
			func(ctx context.Context, tx *pgtx.Tx) (err error) {
				opened, err = coredb.New(tx).OpenBreaker(ctx, coredb.OpenBreakerParams{
					Generation: int64(c.Journal.Generation), Handler: t.handler, EventType: c.Subscription.EventType,
					Cause: t.failure.Class + ": " + t.failure.message, OpenedBy: c.Journal.Name,
				})
				return err
			})
		if err != nil { // it trips again
			c.Log.WarnContext(ctx, "the breaker of a handler was not opened",
				append(pgtx.LogError(err), pgtx.LogHandler, t.handler)...)
			continue
		}
		if opened {
			c.Log.WarnContext(ctx, "breaker open: the handler is not called, and its events wait; see `workers handlers list`",
				pgtx.LogHandler, t.handler, pgtx.LogErrorClass, t.failure.Class)
		}
		c.SetOpenBreakers(append(slices.Clone(c.OpenBreakers()), t.handler))
	}
}

// ReadBreakers reads the column breakers of a claim. It returns the handlers with open breakers, but the one that is
// probed, and the handlers that are to be called.
func (c *Consumer) ReadBreakers(column, probe string) (open []string, called []events.Registration) {
	if column == "" { // nearly always
		return nil, c.Handlers
	}
	open = strings.Fields(column)
	c.SetOpenBreakers(open)
	open = slices.DeleteFunc(open, func(name string) bool { return name == probe })
	return open, slices.DeleteFunc(slices.Clone(c.Handlers), func(r events.Registration) bool {
		return slices.Contains(open, r.Name)
	})
}

// waitFor lets rows wait for the breaker of a handler.
func (t *Tx) waitFor(ctx context.Context, handler string, rows []Row) error {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	waiting, err := t.wait(ctx, handler, rows)
	if err != nil {
		return fmt.Errorf("%w as waiting: %w", ErrSettle, err)
	}
	if waiting != len(rows) {
		return fmt.Errorf("%w as waiting: %d of %d rows: %w", ErrSettle, waiting, len(rows), errKept)
	}
	return nil
}

// wait is [Tx.waitFor] for rows that another worker may hold by now. It returns how many wait.
func (t *Tx) wait(ctx context.Context, handler string, rows []Row) (waiting int, err error) {
	ids, times, tokens := Keys(rows)
	if rows[0].Token == uuid.Nil {
		tokens = []uuid.UUID{}
	}
	all, err := t.Queries.Wait(ctx, coredb.WaitParams{
		Generation: int64(t.consumer.Journal.Generation), Handler: handler, Ids: ids, OccurredAts: times, Tokens: tokens,
	})
	return len(all), err
}

// Waits lets a leased row wait for the breaker of a handler, and reports whether this worker still held the row.
func Waits(ctx context.Context, t *Tx, handler string, row Row) (held bool, err error) {
	waiting, err := t.wait(ctx, handler, []Row{row})
	return waiting > 0, err
}

// settleOrWait settles those of the rows that no handler with an open breaker is for, and lets the others wait.
func settleOrWait(open []string) func(context.Context, *Tx, []Row) error {
	if len(open) == 0 {
		return deliver
	}
	return func(ctx context.Context, t *Tx, rows []Row) error {
		waiting := make(map[string][]Row)
		var rest []Row
		for _, row := range rows {
			i := slices.IndexFunc(t.consumer.handlersOf(&row.Envelope), func(r events.Registration) bool {
				return slices.Contains(open, r.Name)
			})
			if i < 0 {
				rest = append(rest, row)
				continue
			}
			name := t.consumer.handlersOf(&row.Envelope)[i].Name
			waiting[name] = append(waiting[name], row)
		}
		for name, all := range waiting {
			if err := t.waitFor(ctx, name, all); err != nil {
				return err
			}
		}
		if len(rest) == 0 {
			return nil
		}
		return deliver(ctx, t, rest)
	}
}

// Probed is what a probe has found: how many calls of the handler there were, and whether the last one failed.
type Probed struct {
	mu     sync.Mutex
	Calls  int
	Failed bool
}

// Note takes in a call; f is its failure, or nil.
func (p *Probed) Note(f *Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Calls++
	p.Failed = p.Failed || f != nil && (f.disposition == free || f.disposition == transient && !f.ofData())
}

// ProbeBreaker probes the open breaker of a handler, if it is time and no other worker does. It reports whether the
// breaker closes now, and whether the next probe may follow at once.
func (c *Consumer) ProbeBreaker(ctx context.Context, handler string) (closing, next bool, err error) {
	i := slices.IndexFunc(c.Handlers, func(r events.Registration) bool { return r.Name == handler })
	if i < 0 { // the build that opened it had the handler: its events wait for none
		closing, err = c.probed(ctx, handler, &Probed{Calls: maxProbe})
		return closing, false, err
	}
	if c.Probe == nil {
		return false, false, nil
	}
	limit := c.Handlers[i].CallTimeout() + c.Subscription.Lease + pgtx.ProbeGrace
	width := 0
	err = pgtx.InTx(ctx, c.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
		n, err := coredb.New(tx).ProbeBreaker(ctx, coredb.ProbeBreakerParams{
			Generation: int64(c.Journal.Generation), Handler: handler, Seconds: limit.Seconds(),
		})
		width = int(n)
		return err
	})
	if err != nil || width == 0 {
		return false, false, err
	}
	probing, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	found := c.Probe(ctx, probing, handler, width)
	if ctx.Err() != nil { // what it found was cancelled
		found.Failed = true
	}
	closing, err = c.probed(context.WithoutCancel(ctx), handler, found)
	return closing, found.Calls > 0 && !found.Failed, err
}

// maxProbe is the width of the last probe: after so many calls that went well a breaker closes (core.breaker_probed).
const maxProbe = 8

// probed records what a probe has found, and reports whether the breaker closes.
func (c *Consumer) probed(ctx context.Context, handler string, found *Probed) (closing bool, err error) {
	err = pgtx.InTx(ctx, c.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
		closing, err = coredb.New(tx).BreakerProbed(ctx, coredb.BreakerProbedParams{
			Generation: int64(c.Journal.Generation), Handler: handler,
			Calls: int32(found.Calls), Failed: found.Failed, //nolint:gosec // few calls
		})
		return err
	})
	return closing, err
}
