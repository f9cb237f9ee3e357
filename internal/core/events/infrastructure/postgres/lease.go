package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// lease is a row that is in flight with this process, until it is settled, released or lost.
type lease struct {
	claimed
	handled []string                // handlers that need not run
	cancel  context.CancelCauseFunc // ends the work on it
	renewed time.Time               // when its latest renewal was sent, by this process's clock; under the consumer's lock
}

// logged are the attributes by which an error of settling l is logged.
func (l *lease) logged(err error) []any {
	return []any{logEventID, l.envelope.EventID, logEventType, l.envelope.EventType,
		logErrorClass, classify(err, 0).class, logReason, err.Error()}
}

// work runs the handlers of one lease, one after the other, and settles each as it is done. It reports whether the lease
// remains to be released. Ctx is done with the cause ErrLeaseLost or ErrStopping.
func (c *leased) work(ctx context.Context, l *lease) (remains bool) {
	todo, unhandled, failures := c.examine(l)
	for i, r := range todo {
		c.note(ctx, l, r)
		if ctx.Err() != nil {
			return c.interrupted(ctx, l, append(unhandled, todo[i:]...), failures)
		}
		started := time.Now()
		completion, err := c.execute(ctx, r, l)
		took := time.Since(started)
		if err != nil && ctx.Err() != nil {
			return c.interrupted(ctx, l, append(unhandled, todo[i:]...), failures)
		}
		if err == nil {
			row := rowKept
			if i == len(todo)-1 && len(failures) == 0 && len(unhandled) == 0 {
				row = rowDelivered
			}
			err = c.completer.settle(ctx, &result{lease: l, handler: r, completion: completion, row: row})
			if errors.Is(err, errLeaseLost) || errors.Is(err, errNoTime) {
				return c.unsettled(ctx, l, err)
			}
		}
		if err != nil {
			failures[r.Name] = classify(err, l.record[r.Name].Failures)
			unhandled = append(unhandled, r)
		}
		c.logHandled(ctx, r, l.claimed, time.Now().Add(-took), failures) // without the wait for the completer
	}
	last := &result{lease: l, row: rowDelivered}
	switch {
	case len(failures) > 0 || len(unhandled) > 0:
		v := judge(l.record, unhandled, failures, rand.Float64)
		if len(failures) == 0 {
			v.counted = len(todo) > 0 // all that ran was handled
		}
		for _, r := range unhandled {
			if v.failed && v.classes[r.Name] == "" { // parked earlier
				v.classes[r.Name] = l.record[r.Name].Class
			}
		}
		last.row, last.decision = rowDecided, v
	case len(todo) > 0:
		return false // delivered with the last handler
	}
	return c.unsettled(ctx, l, c.completer.settle(ctx, last))
}

// interrupted ends the work on a lease that was cancelled. Failures are those of handlers that had ended by then.
func (c *leased) interrupted(ctx context.Context, l *lease, unhandled []events.Registration, failures map[string]failure) (remains bool) {
	switch {
	case errors.Is(context.Cause(ctx), events.ErrLeaseLost):
		return c.unsettled(ctx, l, errLeaseLost)
	case len(failures) == 0:
		return true
	}
	c.cutOff.Store(true)
	decision := judge(l.record, unhandled, failures, rand.Float64)
	return c.unsettled(ctx, l, c.completer.settle(ctx, &result{lease: l, row: rowDecided, decision: decision}))
}

// unsettled logs why a lease is not settled, if it is not, and reports whether it remains to be released.
func (c *leased) unsettled(ctx context.Context, l *lease, err error) (remains bool) {
	switch {
	case errors.Is(err, errNoTime):
		return true
	case errors.Is(err, errLeaseLost):
		c.log.WarnContext(ctx, "lease lost, or event settled already: this result is dropped", logEventID, l.envelope.EventID,
			logEventType, l.envelope.EventType, logAttempts, l.attempts+1)
	case err != nil:
		c.log.WarnContext(ctx, "could not be settled: the event is run again when its lease has run out", l.logged(err)...)
	}
	return false
}

// examine says which handlers are to run for l, which have had their last try, and what is wrong with
// the row itself.
func (c *leased) examine(l *lease) (todo, unhandled []events.Registration, failures map[string]failure) {
	failures = make(map[string]failure)
	if l.corrupt != nil { // what ran before is unknown: for a person to look at
		failures["outbox"] = failure{class: "CorruptRow", disposition: terminal, message: l.corrupt.Error()}
		return nil, nil, failures
	}
	meant := c.handlersOf(l.envelope)
	if len(meant) == 0 {
		failures[string(l.envelope.Target)] = classify(events.ErrNoHandler, 0)
	}
	for _, r := range meant {
		if slices.Contains(l.handled, r.Name) {
			continue
		}
		if l.record[r.Name].Parked {
			unhandled = append(unhandled, r)
		} else {
			todo = append(todo, r)
		}
	}
	return todo, unhandled, failures
}

// execute runs one handler, outside any transaction.
func (c *leased) execute(ctx context.Context, r events.Registration, l *lease) (events.Completion, error) {
	var completion events.Completion
	err := runGuarded(ctx, r.CallTimeout(), func(ctx context.Context) (err error) {
		completion, err = r.Executor.Execute(ctx, l.envelope)
		if overran(ctx, err) {
			err = fmt.Errorf("not done within its timeout of %s: %w", r.CallTimeout(), err)
		}
		return err
	})
	c.logPanic(ctx, r, []events.Envelope{l.envelope}, err)
	if err != nil {
		return nil, err // and not what an abandoned one may still be writing
	}
	return completion, nil
}

// note names the handler that runs next, if there are several, for the reaper to charge.
func (c *leased) note(ctx context.Context, l *lease, r events.Registration) {
	if len(c.handlers) == 1 {
		return
	}
	held, err := c.renew(ctx, []*lease{l}, []string{r.Name})
	if is, known := held[l.token]; err == nil && known && !is {
		l.cancel(events.ErrLeaseLost)
	}
}

// beat renews the leases in flight until the consumer is over.
func (c *leased) beat(ctx context.Context) {
	every := c.subscription.Lease / 3
	for next := every; ; {
		pause(ctx, next, c.over)
		select {
		case <-c.over:
			return
		default:
		}
		c.mu.Lock()
		all := slices.Collect(maps.Values(c.leases))
		c.mu.Unlock()
		next = every
		if len(all) == 0 {
			continue
		}
		sent := time.Now()
		held, err := c.renew(ctx, all, make([]string, len(all)))
		if err != nil || len(held) < len(all) { // some are locked at the moment
			next = jittered(max(min(every/4, maxBackoff), minRenewal/2))
		}
		if err != nil {
			c.log.WarnContext(ctx, "leases could not be renewed", logEventType, c.subscription.EventType, logRows, len(all),
				logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, next.Milliseconds())
		}
		c.mu.Lock()
		for _, l := range all {
			is, known := held[l.token]
			if is {
				l.renewed = sent
			} else if known || time.Since(l.renewed) >= c.subscription.Lease {
				l.cancel(events.ErrLeaseLost)
			}
		}
		c.mu.Unlock()
	}
}

// release gives back, as if they had not been leased, all leases that remain when the worker stops. Rows that are locked,
// by a COMMIT whose reply was lost perhaps, are left to run out.
func (c *leased) release() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.leases))
	c.mu.Unlock()
	if len(all) == 0 {
		return
	}
	c.cutOff.Store(true)
	ctx := c.last // all the time that is left: a loaded server may take long to connect
	rows := claimedOf(all)
	ids, times := namesOf(rows)
	var tokens []uuid.UUID
	err := inTx(ctx, c.journal.pool, workerRole, func(tx pgx.Tx) (err error) {
		tokens, err = coredb.New(tx).Release(ctx, coredb.ReleaseParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(rows)})
		return err
	})
	if err != nil {
		c.log.WarnContext(ctx, "leases could not be released: their events are run again when they have run out",
			logEventType, c.subscription.EventType, logRows, len(all), logErrorClass, classify(err, 0).class, logReason, err.Error())
		return
	}
	var released []Settlement
	for _, l := range all {
		if slices.Contains(tokens, l.token) {
			released = append(released, Settlement{Envelope: l.envelope, Outcome: Released, Attempts: l.attempts})
		}
	}
	c.report(ctx, released)
	if left := len(all) - len(released); left > 0 {
		c.log.WarnContext(ctx, "left in flight: these events are locked or settled; what is not settled is run again when its lease has run out",
			logEventType, c.subscription.EventType, logRows, left)
	}
}

// renew renews leases, and returns for each token whether it holds one; nothing for a row that is locked. Handlers are noted
// as running; the empty name leaves what was noted. It has its own connections: a used-up pool must not cost the leases.
func (c *leased) renew(ctx context.Context, all []*lease, handlers []string) (map[uuid.UUID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(max(c.subscription.Lease/3, minRenewal), statementTimeout))
	defer cancel()
	held := make(map[uuid.UUID]bool, len(all))
	err := inTx(ctx, c.journal.pool, workerRole, func(tx pgx.Tx) error {
		return heartbeat(ctx, coredb.New(tx), claimedOf(all), handlers, held)
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases of %s: %w", c.subscription.EventType, err)
	}
	return held, nil
}

// minRenewal is how long a renewal may take, however short the lease.
const minRenewal = 100 * time.Millisecond

// heartbeat renews the leases of rows, which stay locked for the transaction, and notes in held which of them
// hold.
func heartbeat(ctx context.Context, queries *coredb.Queries, rows []claimed, handlers []string, held map[uuid.UUID]bool) error {
	ids, times := namesOf(rows)
	found, err := queries.Heartbeat(ctx, coredb.HeartbeatParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(rows), Handlers: handlers})
	for _, f := range found {
		held[f.Token] = f.Held
	}
	return err
}

func claimedOf(leases []*lease) []claimed {
	rows := make([]claimed, len(leases))
	for i, l := range leases {
		rows[i] = l.claimed
	}
	return rows
}

func tokensOf(rows []claimed) []uuid.UUID {
	tokens := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		tokens[i] = row.token
	}
	return tokens
}

// recordLeased writes a retry decision, and reports whether the lease is held.
func (d *dispatchTx) recordLeased(ctx context.Context, row claimed, v verdict) (held bool, err error) {
	encoded, err := json.Marshal(v.failures)
	if err != nil {
		return false, fmt.Errorf("encode handler_failures: %w", err)
	}
	if v.failed {
		held, err = d.queries.FailLeased(ctx, coredb.FailLeasedParams{
			ID: row.envelope.EventID, OccurredAt: row.envelope.OccurredAt, Token: row.token,
			LastError: v.lastError, HandlerFailures: encoded, Counted: v.counted,
		})
	} else {
		held, err = d.queries.RetryLeased(ctx, coredb.RetryLeasedParams{
			ID: row.envelope.EventID, OccurredAt: row.envelope.OccurredAt, Token: row.token,
			DelaySeconds: v.delay.Seconds(), LastError: v.lastError, HandlerFailures: encoded, Counted: v.counted,
		})
	}
	if err != nil {
		return false, fmt.Errorf("record the failure of %s: %w", row.envelope.EventID, err)
	}
	if held {
		d.settled = append(d.settled, v.settlement(row))
	}
	return held, nil
}
