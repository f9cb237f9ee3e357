package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// lease is a row that is in flight with this process, until it is settled or lost.
type lease struct {
	claimed
	handled  []string                // handlers that need not run
	cutOff   context.CancelCauseFunc // ends the work on it
	stop     <-chan struct{}         // closed when all work of the process is to end
	renewed  time.Time               // when its latest renewal was asked for, by this process's clock; under the consumer's lock
	settling bool                    // it is with the settlers; the same
	left     bool                    // it is logged that it is left in flight; the same
}

// work runs the handlers of one lease, one after the other, and settles each as it is done: what a slow one has
// achieved is kept, whatever becomes of the next. Ctx is done with the cause ErrLeaseLost or ErrStopping.
func (c *leased) work(ctx context.Context, l *lease) {
	todo, unhandled, failures := c.examine(l)
	several := len(c.handlers) > 1
	for i, r := range todo {
		if several && !c.noteAtWork(ctx, l, r) || ctx.Err() != nil {
			c.giveBack(ctx, l, append(unhandled, todo[i:]...), failures)
			return
		}
		started := c.now()
		completion, err := c.execute(ctx, r, l)
		executed := c.now()
		if err != nil && ctx.Err() != nil {
			if stopping(ctx) {
				c.noteCut()
			}
			c.giveBack(ctx, l, append(unhandled, todo[i:]...), failures)
			return
		}
		if err == nil {
			row := rowKept
			if i == len(todo)-1 && len(failures) == 0 && len(unhandled) == 0 {
				row = rowDelivered
			}
			var lost bool
			e := &ending{lease: l, handler: r, completion: completion, row: row}
			if lost, err = c.end(ctx, e); e.givenUp != nil {
				c.giveBackInstead(ctx, e, append(unhandled, todo[i:]...), failures)
			}
			if lost {
				return
			}
		}
		if err != nil {
			failures[r.Name] = classify(err, l.record[r.Name].Failures)
			unhandled = append(unhandled, r)
		}
		c.logHandled(ctx, r, l.claimed, started.Add(c.now().Sub(executed)), failures) // without the wait for the settlers
	}
	switch {
	case len(failures) > 0 || len(unhandled) > 0:
		v := judge(l.record, unhandled, failures, c.random)
		if len(failures) == 0 {
			v.counted = len(todo) > 0 // all that ran was handled
		}
		for _, r := range unhandled {
			if v.failed && v.classes[r.Name] == "" { // parked earlier
				v.classes[r.Name] = l.record[r.Name].Class
			}
		}
		_, _ = c.end(ctx, &ending{lease: l, row: rowJudged, verdict: v})
	case len(todo) == 0:
		_, _ = c.end(ctx, &ending{lease: l, row: rowDelivered})
	}
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
		record := l.record[r.Name]
		if !record.Parked && r.RetryPolicy().Exhausted(record.Failures) { // charged by the reaper, which knows no policy
			record.Parked = true
			l.record[r.Name] = record
		}
		if record.Parked {
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

// note is that a handler of a lease is about to run.
type note struct {
	lease   *lease
	handler string
	answer  chan noted
}

// noted is what became of a note: whether the lease is held, if that is known.
type noted struct {
	held, known bool
	err         error
}

// noteAtWork notes which of several handlers is about to run, so that the reaper knows which it was. False: ctx
// is done, or the lease lost.
func (c *leased) noteAtWork(ctx context.Context, l *lease, r events.Registration) bool {
	var wait backoff
	for waits := 1; ctx.Err() == nil; waits++ {
		n := &note{l, r.Name, make(chan noted, 1)}
		c.mu.Lock()
		c.notes = append(c.notes, n)
		if !c.noting {
			c.noting = true
			c.wait.Go(func() { c.writeNotes(context.WithoutCancel(ctx)) })
		}
		c.mu.Unlock()
		switch a := <-n.answer; {
		case a.err != nil:
			pause(ctx, wait.next(c.random), nil)
		case !a.known:
			pause(ctx, c.pauseLocked(waits), nil)
		case a.held:
			return true
		default:
			l.cutOff(events.ErrLeaseLost)
		}
	}
	return false
}

// writeNotes writes what has gathered, in one statement each time: a thousand of their own would hold up the
// heartbeat.
func (c *leased) writeNotes(ctx context.Context) {
	for {
		c.mu.Lock()
		notes := c.notes
		c.notes = nil
		c.noting = len(notes) > 0
		c.mu.Unlock()
		if len(notes) == 0 {
			return
		}
		leases, handlers := make([]*lease, len(notes)), make([]string, len(notes))
		for i, n := range notes {
			leases[i], handlers[i] = n.lease, n.handler
		}
		held, err := c.renew(ctx, leases, handlers)
		for _, n := range notes {
			is, known := held[n.lease.token]
			n.answer <- noted{is, known, err}
		}
	}
}

// giveBack ends the work on a lease that was cut off. Failures are those of handlers that had ended by then, of
// all those unhandled.
func (c *leased) giveBack(ctx context.Context, l *lease, unhandled []events.Registration, failures map[string]failure) {
	if errors.Is(context.Cause(ctx), events.ErrLeaseLost) {
		c.logLost(ctx, l)
		return
	}
	_, _ = c.end(ctx, c.backOf(l, unhandled, failures))
}

// giveBackInstead ends the work on a lease when what its handler has done was given up, as the worker stops: another is to
// have the row at once, and repeats it. Unless it was committed after all.
func (c *leased) giveBackInstead(ctx context.Context, given *ending, unhandled []events.Registration, failures map[string]failure) {
	e := c.backOf(given.lease, unhandled, failures)
	e.insteadOf = given
	if lost, err := c.end(ctx, e); !lost && err == nil && !e.recalled {
		c.noteCut()
		c.log.WarnContext(ctx, "not settled: it was given back, to be run again", given.lease.interrupted(given.givenUp)...)
	}
}

// backOf is the ending that gives a row back.
func (c *leased) backOf(l *lease, unhandled []events.Registration, failures map[string]failure) *ending {
	if len(failures) > 0 {
		return &ending{lease: l, row: rowJudged, verdict: judge(l.record, unhandled, failures, c.random)}
	}
	return &ending{lease: l, row: rowReleased}
}

func (c *leased) logLost(ctx context.Context, l *lease) {
	c.log.WarnContext(ctx, "lease lost: what came of this execution is dropped", logEventID, l.envelope.EventID,
		logEventType, l.envelope.EventType, logAttempts, l.attempts+1)
}

// logLeft says, once, of an event that it is left in flight.
func (c *leased) logLeft(ctx context.Context, l *lease, why error) {
	c.mu.Lock()
	said := l.left
	l.left, c.cut = true, c.cut || stopping(ctx)
	c.mu.Unlock()
	if !said {
		c.log.WarnContext(ctx, "left in flight: it is run again when its lease has run out, unless a COMMIT on its way settles it", l.interrupted(why)...)
	}
}

// beat renews the leases in flight until none is left.
func (c *leased) beat(ctx context.Context, none <-chan struct{}) {
	every := c.subscription.Lease / 3
	next := every
	for {
		pause(ctx, next, none)
		select {
		case <-none:
			return
		default:
		}
		c.mu.Lock()
		all := slices.Collect(maps.Values(c.leases))
		c.mu.Unlock()
		sent := c.now()
		held, err := c.renew(ctx, all, make([]string, len(all)))
		next = every
		if err != nil || len(held) < len(all) { // some are locked at the moment
			next = max(min(every/4, maxBackoff), minRenewal/2)
			next = time.Duration(float64(next) * (0.5 + c.random()/2))
		}
		if err != nil {
			c.log.WarnContext(ctx, "leases could not be renewed", logEventType, c.subscription.EventType, logRows, len(all),
				logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, next.Milliseconds())
		}
		c.mu.Lock()
		for _, l := range all {
			known, ok := held[l.token]
			if known {
				l.renewed = sent
			} else if !l.settling && (ok || c.now().Sub(l.renewed) >= c.subscription.Lease) {
				l.cutOff(events.ErrLeaseLost)
			}
		}
		c.mu.Unlock()
	}
}

// renew renews leases, and says of each token whether it holds one; nothing, where that cannot be told at the
// moment. At work are the handlers that they are at; the empty name leaves what was noted. Through connections of
// its own: a pool that is used up must not cost the leases.
func (c *leased) renew(ctx context.Context, all []*lease, atWork []string) (map[uuid.UUID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(max(c.subscription.Lease/3, minRenewal), statementTimeout))
	defer cancel()
	rows := make([]claimed, len(all))
	for i, l := range all {
		rows[i] = l.claimed
	}
	held := make(map[uuid.UUID]bool, len(all))
	err := inTx(ctx, c.journal.pool, workerRole, func(tx pgx.Tx) error {
		return heartbeat(ctx, coredb.New(tx), rows, atWork, held)
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases of %s: %w", c.subscription.EventType, err)
	}
	return held, nil
}

// A row that somebody has locked at the moment is asked about again after lockedPause, and again after up to
// maxLockedPause, or a twentieth of a short lease. Who waits says so with the n-th pause, which is after a second or more.
const (
	lockedPause    = 100 * time.Millisecond
	maxLockedPause = time.Second
	waitsUnsaid    = 10
)

// pauseLocked is how long the n-th pause is.
func (c *leased) pauseLocked(waits int) time.Duration {
	longest := min(max(c.subscription.Lease/20, lockedPause), maxLockedPause)
	return min(lockedPause<<min(waits-1, 10), longest)
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

func tokensOf(rows []claimed) []uuid.UUID {
	tokens := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		tokens[i] = row.token
	}
	return tokens
}
