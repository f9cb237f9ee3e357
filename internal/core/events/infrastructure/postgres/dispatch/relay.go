package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Relay carries events through a broker, from their claim to their handlers (docs/decisions/0021). Safe for concurrent
// use.
type Relay interface {
	// Run connects to the broker and prepares it for the subscriptions, again and again until ctx is done. Database
	// returns the id that tells this database from others that use the broker.
	Run(ctx context.Context, database func(context.Context) (uuid.UUID, error), subscriptions []events.Subscription)
	// Ready reports whether the broker takes events.
	Ready() bool
	// Send sends events of a subscription, and reports which of them the broker has stored now and did not have before.
	Send(ctx context.Context, s events.Subscription, rows []Row) (stored []bool)
	// Receive waits until there are messages for a handler, or ctx is done, and returns at most limit of them.
	Receive(ctx context.Context, handler string, limit int) (Messages, error)
	// Oldest returns the event of the oldest message that a handler of a subscription has not acked, and the zero id if
	// there is none.
	Oldest(ctx context.Context, s events.Subscription) (uuid.UUID, error)
}

// Messages are what a broker has for one handler. It keeps them for the receiver until one of the functions is called.
type Messages struct {
	First []Row  // they come for the first time
	Again []Row  // what became of them the last time is not known
	Ack   func() // the broker may forget them
	Leave func() // it may bring them again
}

// Relays reports whether the events of a subscription may be sent to a broker. Leased work may not: its lease, in
// Postgres, is what a broker would give it.
func Relays(s events.Subscription) bool { return s.Mode == events.RowLocked }

// relay sends those of the claimed rows to the broker that were not sent before, if events take that path, and commits.
// Sent says that there were any. Kept is when the last of those was due that stay, because they were sent before, or
// were refused, or take both paths.
func (t *Tx) relay(ctx context.Context, rows []Row) (sent bool, kept time.Time, err error) {
	c := t.consumer
	if c.Relay == nil || !c.Relay.Ready() {
		return false, kept, nil
	}
	fresh := slices.DeleteFunc(slices.Clone(rows), func(row Row) bool { return !c.fresh(row) })
	if len(fresh) == 0 {
		return false, kept, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	state, err := t.Queries.Relay(ctx)
	if err != nil {
		return false, kept, fmt.Errorf("read which path events take: %w", err)
	}
	if state.Path == pgtx.PathPostgres {
		return false, kept, nil
	}
	stored := c.Relay.Send(ctx, c.Subscription, fresh)
	ids, times, _ := Keys(fresh)
	relayed, err := t.Queries.Relayed(ctx, coredb.RelayedParams{Ids: ids, OccurredAts: times, Stored: stored})
	if err != nil {
		return false, kept, fmt.Errorf("%w as relayed: %w", ErrSettle, err)
	}
	if int(relayed) < len(rows) {
		for i := range rows {
			if rows[i].AvailableAt.After(kept) {
				kept = rows[i].AvailableAt
			}
		}
	}
	n := 0
	for _, ok := range stored {
		if ok {
			n++
		}
	}
	c.Telemetry.Sent(ctx, n, len(fresh)-n)
	return true, kept, t.Commit(ctx)
}

// fresh reports whether a row may be sent: it was not before, and nothing has gone wrong with it.
func (c *Consumer) fresh(row Row) bool {
	return !row.Relayed && !row.Replayed && row.Attempts == 0 && len(row.Failures) == 0 && row.Corrupt == nil &&
		len(c.handlersOf(&row.Envelope)) > 0
}

// Receive handles what the broker has for the consumer's handlers, until the consumer is stopped. Ctx ends the
// handlers.
func (c *Consumer) Receive(ctx context.Context) {
	receiving, end := context.WithCancel(ctx)
	go func() {
		defer end()
		select {
		case <-c.Stop:
		case <-ctx.Done():
		}
	}()
	for _, r := range c.Handlers {
		for range c.Subscription.Concurrency {
			c.Running.Go(func() { c.receive(receiving, ctx, r) })
		}
	}
}

// receive is one receiver for a handler. It takes more at once while there are many.
func (c *Consumer) receive(receiving, handling context.Context, r events.Registration) {
	sizer := newBatchSizer(c.Subscription)
	var wait pgtx.Backoff
	for receiving.Err() == nil {
		c.AwaitServer(receiving)
		limit := sizer.size
		m, err := c.Relay.Receive(receiving, r.Name, limit)
		started := time.Now()
		if got := (claimResult{rows: len(m.First) + len(m.Again), payload: payloadOf(m)}); got.rows > 0 {
			got.undone, err = c.handleMessages(handling, r, m)
			c.OpenTripped(handling)
			sizer.adjust(got, limit, time.Since(started))
		}
		if err == nil {
			wait = pgtx.Backoff{}
		}
		if err != nil && receiving.Err() == nil {
			c.TryLater(receiving, wait.Next(), c.Stop, err)
		}
	}
}

func payloadOf(m Messages) (bytes int) {
	for _, rows := range [][]Row{m.First, m.Again} {
		for i := range rows {
			bytes += len(rows[i].Envelope.Payload)
		}
	}
	return bytes
}

// handleMessages handles messages that come for the first time. Everything else goes back to Postgres, where it is
// handled as if no broker had had it: what comes again, because its handler may end the worker; what is paused; and
// what has failed, to be retried.
func (c *Consumer) handleMessages(ctx context.Context, r events.Registration, m Messages) (undone bool, err error) {
	others := func(row Row) bool { return !handles(r, &row.Envelope) }
	left, undone := c.handleFirst(ctx, r, slices.DeleteFunc(m.First, others))
	if left = append(left, slices.DeleteFunc(m.Again, others)...); len(left) > 0 {
		if ctx.Err() != nil {
			c.ForcedStop.Store(true)
		}
		if err := c.giveBack(context.WithoutCancel(ctx), left); err != nil {
			m.Leave()
			return undone, err
		}
	}
	m.Ack()
	return undone, nil
}

// handleFirst handles rows in one transaction. It returns those that are to go back to Postgres: if that fails, all, so
// that they run one by one there, and none waits for another. Undone says that it failed. The failure of a single row
// is recorded, which gives it back.
func (c *Consumer) handleFirst(ctx context.Context, r events.Registration, rows []Row) (left []Row, undone bool) {
	if len(rows) == 0 {
		return nil, false
	}
	if slices.Contains(c.OpenBreakers(), r.Name) { // they wait in Postgres
		return rows, false
	}
	started := time.Now()
	left, ran, err := c.handleRelayed(ctx, r, rows)
	switch {
	case err == nil:
		return left, false
	case !ran || ctx.Err() != nil:
	case len(rows) > 1:
		c.logRollback(ctx, err, len(rows), errors.Is(err, errConnectionLost))
	case c.recordRelayed(ctx, r, rows[0], started, err) == nil:
		return nil, true
	}
	return rows, true
}

func names(handlers []events.Registration) (all []string) {
	for _, r := range handlers {
		all = append(all, r.Name)
	}
	return all
}

// giveBack makes rows pending again.
func (c *Consumer) giveBack(ctx context.Context, rows []Row) error {
	ids, times, _ := Keys(rows)
	return pgtx.InTx(ctx, c.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
		_, err := coredb.New(tx).ReturnRelayed(ctx, coredb.ReturnRelayedParams{Ids: ids, OccurredAts: times})
		if err != nil {
			return fmt.Errorf("give messages back to Postgres: %w", err)
		}
		return nil
	})
}

// handleRelayed runs a handler for those rows that may be handled now, and returns the others. It settles those that
// every other handler has handled, too. Ran says that an error may be the handler's.
func (c *Consumer) handleRelayed(ctx context.Context, r events.Registration, rows []Row) (left []Row, ran bool,
	err error) {
	t, err := Begin(ctx, c, nil)
	if err != nil {
		return nil, false, err
	}
	defer t.End()
	taken, left, err := t.takeRelayed(ctx, r, rows)
	if err != nil || len(taken) == 0 {
		return left, false, err
	}
	t.noteAgain(taken)
	if err := handleAll(ctx, t, taken, []events.Registration{r}, deliverRelayed); err != nil {
		if t.LostByNetwork() {
			err = connectionLost(err)
		}
		// session state, which a batch may not set, a single row may set when Postgres dispatches it
		own := errors.Is(err, ErrSettle) || errors.Is(err, pgtx.ErrSessionState) || pgtx.StatementLost(err)
		return nil, !own, err
	}
	c.Report(ctx, t.Settled)
	if t.givenBack {
		c.Wake(ctx, false)
	}
	return left, true, nil
}

// recordRelayed records that a handler has failed for a row.
func (c *Consumer) recordRelayed(ctx context.Context, r events.Registration, row Row, started time.Time,
	cause error) error {
	t, err := Begin(ctx, c, nil)
	if err != nil {
		return err
	}
	defer t.End()
	statement, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	e := &row.Envelope
	handlers := c.handlersOf(e)
	state, err := t.Queries.FailRelayed(statement, coredb.FailRelayedParams{
		ID: e.EventID, OccurredAt: e.OccurredAt, Handlers: names(handlers),
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // it is settled
	}
	if err != nil {
		return fmt.Errorf("%w: lock a row whose handler has failed: %w", ErrSettle, err)
	}
	if slices.Contains(state.Handled, r.Name) {
		return nil // in another transaction, or in this one, whose answer was lost
	}
	row.AvailableAt, row.Attempts = state.AvailableAt, int(state.Attempts)
	row.SetFailures(state.HandlerFailures)
	failures := map[string]Failure{r.Name: c.ClassifyAndNote(ctx, cause, row.Failures[r.Name].Failures).began(started)}
	f := failures[r.Name]
	c.Observed(r, e.EventID, &f)
	c.LogHandled(ctx, r, &row, started, failures)
	unhandled := slices.DeleteFunc(slices.Clone(handlers), func(h events.Registration) bool {
		return slices.Contains(state.Handled, h.Name)
	})
	if _, err := Record(ctx, t, row, Decide(row.Failures, unhandled, failures)); err != nil {
		return err
	}
	if err := t.Commit(ctx); err != nil {
		return err
	}
	c.Report(ctx, t.Settled)
	return nil
}

// takeRelayed divides rows into those that a handler may handle now, and the others.
func (t *Tx) takeRelayed(ctx context.Context, r events.Registration, rows []Row) (taken, left []Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	ids, times, _ := Keys(rows)
	found, err := t.Queries.TakeRelayed(ctx, coredb.TakeRelayedParams{
		Generation: int64(t.consumer.Journal.Generation), Handler: r.Name, Ids: ids, OccurredAts: times,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("ask which messages may be handled: %w", err)
	}
	if len(found) == len(rows) { // nearly always
		return rows, nil, nil
	}
	free := make(map[uuid.UUID]bool, len(found))
	for _, id := range found {
		free[id] = true
	}
	for _, row := range rows {
		if free[row.Envelope.EventID] {
			taken = append(taken, row)
		} else {
			left = append(left, row)
		}
	}
	return taken, left, nil
}

// deliverRelayed settles those of the rows that all their handlers have handled.
func deliverRelayed(ctx context.Context, t *Tx, rows []Row) error {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	ids, times, _ := Keys(rows)
	delivered, err := t.Queries.DeliverRelayed(ctx, coredb.DeliverRelayedParams{
		Handlers: names(t.consumer.Handlers), Ids: ids, OccurredAts: times,
	})
	if err != nil {
		return fmt.Errorf("%w as delivered: %w", ErrSettle, err)
	}
	place := make(map[uuid.UUID]*Row, len(rows))
	for i := range rows {
		place[rows[i].Envelope.EventID] = &rows[i]
	}
	for _, row := range delivered {
		if row.Pending {
			t.givenBack = true
		} else {
			t.Delivered(place[row.ID])
		}
	}
	return nil
}

// ReturnLost gives back the rows that were sent before everything that the broker still has for the consumer: its
// stream was purged, deleted or restored, or the messages of a handler were. Before is the database's time of a moment
// ago; later rows are left. Of a broker that is down it gives back all.
func (c *Consumer) ReturnLost(ctx context.Context, before time.Time, down bool) (returned int, err error) {
	var oldest uuid.UUID
	if !down {
		oldest, err = c.Relay.Oldest(ctx, c.Subscription)
	}
	for n := events.MaxBatchSize; err == nil && n == events.MaxBatchSize; returned += n {
		err = pgtx.InTx(ctx, c.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
			rows, err := coredb.New(tx).ReturnLost(ctx, coredb.ReturnLostParams{
				Generation: int64(c.Journal.Generation), EventType: c.Subscription.EventType, Before: before, Oldest: oldest,
				RowLimit: events.MaxBatchSize,
			})
			n = int(rows)
			return err
		})
		if err != nil {
			n = 0
		}
	}
	return returned, err
}
