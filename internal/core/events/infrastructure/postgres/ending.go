package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// maxSettlers is how many transactions of a consumer settle at once, one of them without completions. While
	// they do, what comes next gathers for the following ones.
	maxSettlers = 3
	// firstEndings is how many they settle together at first, maxEndings at most: as many as take batchTime.
	firstEndings = 10
	maxEndings   = 100
	// maxCompletions is how often a completion is tried that was undone for no fault of its own. What it
	// completes may have taken an hour.
	maxCompletions = 5
	// triesWhenStopping is how often anything is tried once the worker stops.
	triesWhenStopping = 5
)

// ending is what a lease comes to, or one of its handlers.
type ending struct {
	lease      *lease
	handler    events.Registration // that has executed; no name: none
	completion events.Completion   // its; nil: nothing to be written
	row        rowEnd
	verdict    verdict // of a row that is judged

	alone     bool // it has been undone by itself
	uncertain bool // it may be committed: an answer was lost
	answer    chan answer
}

// rowEnd is what becomes of the row with an ending.
type rowEnd int

const (
	rowKept      rowEnd = iota // in flight: other handlers have still to run
	rowDelivered               // settled
	rowReleased                // given back
	rowJudged                  // retried or failed
)

// settling are endings to be settled, by so many transactions at once. Those without a completion are apart: they
// need not wait for what completions wait for, least of all while the worker stops.
type settling struct {
	endings                  []*ending
	settlers, settlersAtMost int
	most                     int // that are settled together, at present
}

// answer is what became of an attempt at an ending.
type answer struct {
	held bool // the lease was ours
	err  error
}

// errRowLocked: somebody else has locked the row, be it our own heartbeat.
var errRowLocked = errors.New("renew leases: the row is locked at the moment")

// beginError is an error of beginning to settle: nothing of it has been tried.
type beginError struct{ err error }

func (e *beginError) Error() string { return e.err.Error() }
func (e *beginError) Unwrap() error { return e.err }

// completionError is an error of a completion, as opposed to one of what is around it.
type completionError struct{ err error }

func (e *completionError) Error() string { return "completion: " + e.err.Error() }
func (e *completionError) Unwrap() error { return e.err }

// end settles e, together with others, and reports whether the lease was still held: if not, nothing of it
// has been written. The error is a failure of e's handler. Ctx is that of the work on the lease; when it is
// done, there are few tries, or one.
func (c *leased) end(ctx context.Context, e *ending) (held bool, err error) {
	var wait backoff
	for tries := 1; ; {
		a := c.try(ctx, e)
		if a.err == nil && !a.held {
			e.lease.cutOff(events.ErrLeaseLost)
			c.logLost(ctx, e.lease)
		}
		if a.err == nil || e.failed(a.err, tries) {
			return a.held || a.err != nil, a.err
		}
		_, unbegun := errors.AsType[*beginError](a.err)
		locked := errors.Is(a.err, errRowLocked)
		stopping := errors.Is(context.Cause(ctx), events.ErrStopping)
		if !unbegun && !locked || stopping {
			tries++
		}
		if ctx.Err() != nil && (!stopping || tries > triesWhenStopping) || tries > maxFree {
			c.log.WarnContext(ctx, "not settled: the reaper will have it run again", logEventID, e.lease.envelope.EventID,
				logEventType, e.lease.envelope.EventType, logErrorClass, classify(a.err, 0).class, logReason, a.err.Error())
			return false, nil
		}
		if stopping {
			pause(context.WithoutCancel(ctx), lockedPause, nil)
			continue
		}
		delay := lockedPause // the settlers have waited already for a connection
		if !locked && !unbegun {
			delay = wait.next(c.random)
			c.log.WarnContext(ctx, "settling interrupted, no attempt counted", logEventID, e.lease.envelope.EventID,
				logEventType, e.lease.envelope.EventType, logErrorClass, classify(a.err, 0).class, logReason, a.err.Error(), logDelay, delay.Milliseconds())
		}
		pause(ctx, delay, nil)
	}
}

// failed reports whether an error of settling e, in its so-manieth try, is a failure of its handler.
func (e *ending) failed(err error, tries int) bool {
	if _, unbegun := errors.AsType[*beginError](err); unbegun {
		return false
	}
	if completion, ok := errors.AsType[*completionError](err); ok {
		return tries >= maxCompletions || classify(completion.err, 0).disposition != free
	}
	return e.handler.Name != "" && tries >= maxFree && !errors.Is(err, errRowLocked)
}

// try hands e to the settlers and awaits the answer.
func (c *leased) try(ctx context.Context, e *ending) answer {
	e.answer = make(chan answer, 1)
	sent := c.now()
	c.mu.Lock()
	e.lease.ending = true
	q := &c.completing
	if e.completion == nil {
		q = &c.recording
	}
	q.endings = append(q.endings, e)
	if q.settlers < q.settlersAtMost {
		q.settlers++
		// what is done is kept, also when the work on it is to stop
		c.wait.Go(func() { c.settle(context.WithoutCancel(ctx), q) })
	}
	c.mu.Unlock()
	a := <-e.answer
	c.mu.Lock()
	defer c.mu.Unlock()
	e.lease.ending = false
	if a.held {
		e.lease.renewed = sent
	}
	return a
}

// settle settles what has gathered, until there is nothing.
func (c *leased) settle(ctx context.Context, q *settling) {
	var wait backoff
	for batch := c.gathered(q); len(batch) > 0; batch = c.gathered(q) {
		started := c.now()
		answers, err := c.settleTogether(ctx, batch)
		if _, unbegun := errors.AsType[*beginError](err); unbegun {
			delay := wait.next(c.random)
			c.log.WarnContext(ctx, "settling interrupted, no attempt counted", logEventType, c.subscription.EventType, logRows, len(batch),
				logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, delay.Milliseconds())
			for _, e := range batch {
				e.reply(nil, err)
			}
			pause(ctx, delay, c.stop) // what comes meanwhile gathers
			continue
		}
		wait = backoff{}
		c.measured(q, len(batch), c.now().Sub(started))
		if err != nil && len(batch) > 1 {
			c.log.DebugContext(ctx, "batch undone, its rows are settled one at a time", logEventType, c.subscription.EventType,
				logRows, len(batch), logErrorClass, classify(err, 0).class)
			for _, e := range batch {
				one, err := c.settleTogether(ctx, []*ending{e})
				e.alone = err != nil
				e.reply(one, err)
			}
			continue
		}
		for _, e := range batch {
			e.reply(answers, err)
		}
	}
}

// measured lets as many be settled together as take batchTime, or a third of a short lease: a long transaction
// holds the rows of others, which nobody can renew meanwhile.
func (c *leased) measured(q *settling, endings int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.most = min(max(2*endings, q.most), maxEndings)
	if each := took / time.Duration(endings); each > 0 {
		q.most = max(min(q.most, int(c.budget()/each)), 1)
	}
}

func (e *ending) reply(held map[*ending]bool, err error) { e.answer <- answer{held: held[e], err: err} }

// gathered takes what is to be settled together.
func (c *leased) gathered(q *settling) []*ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(q.endings) && n < q.most && !q.endings[n].alone {
		n++
	}
	n = min(max(n, 1), len(q.endings))
	if n == 0 {
		q.settlers--
		return nil
	}
	batch := q.endings[:n:n]
	q.endings = q.endings[n:]
	return batch
}

// settleTogether settles a batch in one transaction, all or none of it but for those whose lease is gone, and
// says whose was held. The leases are looked at first, and locked: whoever has lost its own writes nothing.
func (c *leased) settleTogether(ctx context.Context, batch []*ending) (held map[*ending]bool, err error) {
	d := &dispatchTx{consumer: c.consumer}
	if err := d.begin(ctx); err != nil {
		return nil, &beginError{err}
	}
	defer d.end()
	if held, err = d.secure(ctx, batch); err != nil {
		return nil, err
	}
	if err := d.recall(ctx, batch, held); err != nil {
		return nil, err
	}
	completed, err := d.completeAll(ctx, batch, held)
	if err != nil {
		return nil, err
	}
	if err := d.commit(ctx); err != nil {
		if answered(err) && completed {
			return nil, &completionError{err} // a deferred constraint; whose, only one by itself can tell
		}
		for _, e := range batch {
			e.uncertain = e.uncertain || !answered(err)
		}
		return nil, err
	}
	c.report(ctx, d.settled)
	return held, nil
}

// secure writes what becomes of the rows, where the lease is held.
func (d *dispatchTx) secure(ctx context.Context, batch []*ending) (map[*ending]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows := make(map[rowEnd][]claimed)
	for _, e := range batch {
		rows[e.row] = append(rows[e.row], e.lease.claimed)
	}
	ours := make(map[uuid.UUID]bool, len(batch)) // what is known of a token
	if of := rows[rowDelivered]; len(of) > 0 {
		ids, times := namesOf(of)
		tokens, err := d.queries.DeliverLeased(ctx, coredb.DeliverLeasedParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(of)})
		if err != nil {
			return nil, fmt.Errorf("settle as delivered: %w", err)
		}
		for _, token := range tokens {
			ours[token] = true
		}
	}
	if of := rows[rowReleased]; len(of) > 0 {
		ids, times := namesOf(of)
		tokens, err := d.queries.Release(ctx, coredb.ReleaseParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(of)})
		if err != nil {
			return nil, fmt.Errorf("release: %w", err)
		}
		for _, token := range tokens {
			ours[token] = true
		}
	}
	if of := rows[rowKept]; len(of) > 0 {
		if err := heartbeat(ctx, d.queries, of, make([]string, len(of)), ours); err != nil {
			return nil, fmt.Errorf("renew leases: %w", err)
		}
	}
	held := make(map[*ending]bool, len(batch))
	for _, e := range batch {
		is, known := ours[e.lease.token]
		held[e] = is
		switch e.row {
		case rowKept:
			if !known {
				return nil, errRowLocked
			}
		case rowDelivered, rowReleased:
			if is {
				d.settled = append(d.settled, e.settlement())
			}
		case rowJudged:
			before := len(d.settled)
			if err := d.record(ctx, e.lease.claimed, e.verdict); err != nil {
				return nil, err
			}
			held[e] = len(d.settled) > before
		}
	}
	return held, nil
}

// settlement is what is reported of a row that e ends.
func (e *ending) settlement() Settlement {
	row := e.lease.claimed
	switch e.row {
	case rowJudged:
		return e.verdict.settlement(row)
	case rowReleased:
		return Settlement{Envelope: row.envelope, Outcome: Released, Attempts: row.attempts}
	default:
		return Settlement{Envelope: row.envelope, Outcome: Delivered, Attempts: row.attempts + 1}
	}
}

// answered reports whether the server has answered a COMMIT, and so whether it is known what came of it.
func answered(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL"
}

// recall finds endings that are written already, whose answer was lost. A handler's is if its dedup row is
// there: one that was not written must not be now, under a lease that is lost.
func (d *dispatchTx) recall(ctx context.Context, batch []*ending, held map[*ending]bool) error {
	for _, e := range batch {
		if held[e] || !e.uncertain {
			continue
		}
		if e.row == rowKept || e.row == rowDelivered {
			unhandled, err := d.unhandled(ctx, e.lease.claimed)
			if err != nil {
				return err
			}
			missing := slices.ContainsFunc(unhandled, func(r events.Registration) bool { return r.Name == e.handler.Name })
			if missing || e.row == rowDelivered && len(unhandled) > 0 {
				continue // it was not, and the lease is lost
			}
		}
		held[e] = true
		if e.row != rowKept {
			d.settled = append(d.settled, e.settlement())
		}
	}
	return nil
}

// completeAll claims the dedup keys of what is held and runs the completions of those that were free. A
// key that is taken means that another execution was completed: this one has written nothing.
func (d *dispatchTx) completeAll(ctx context.Context, batch []*ending, held map[*ending]bool) (ran bool, err error) {
	var keys keyClaims
	for i, e := range batch {
		if held[e] && e.handler.Name != "" {
			keys.add(e.handler, e.lease.claimed, i)
		}
	}
	if len(keys.first) == 0 {
		return false, nil
	}
	if err := d.claimKeys(ctx, &keys); err != nil {
		return false, err
	}
	started := d.now()
	for i, e := range batch {
		if ran && d.now().Sub(started) > d.budget() {
			return true, errBatchTooLong
		}
		if e.completion == nil || !keys.runs(e.handler, e.lease.claimed, i) {
			continue
		}
		ran = true
		if err := d.complete(ctx, e); err != nil {
			return true, err
		}
		if (d.changed || d.acted) && len(batch) > 1 {
			return true, errSettingsShared
		}
	}
	if !ran {
		return false, nil
	}
	if err := d.exec(ctx, actAs(workerRole, noWorkspace)); err != nil {
		return true, d.completionFailed(fmt.Errorf("returned nil but left the transaction unusable: %w", err))
	}
	return true, nil
}

// complete runs one completion as its context's role.
func (d *dispatchTx) complete(ctx context.Context, e *ending) error {
	role, err := scopeRole(e.handler.Scope())
	if err != nil {
		return &completionError{err}
	}
	if err := d.exec(ctx, actAs(role, e.lease.envelope.WorkspaceID)); err != nil {
		return d.completionFailed(fmt.Errorf("act as %s: %w", role, err))
	}
	limit := min(e.handler.CallTimeout(), completionTimeout, d.subscription.Lease/2)
	err = d.lend(ctx, limit, func(ctx context.Context, tx *lentTx) error { return e.completion(ctx, tx) })
	if err == nil {
		return nil
	}
	d.logPanic(ctx, e.handler, []events.Envelope{e.lease.envelope}, err)
	return d.completionFailed(err)
}

// completionFailed is an error of a completion, or of what its own has to do with: not its fault, when the network
// took the connection.
func (d *dispatchTx) completionFailed(err error) error {
	if d.lost() && !d.spoiled {
		err = &lostConnectionError{err}
	}
	return &completionError{err}
}

// completionTimeout is how long one completion may take at most, if half of the lease is not less: its
// transaction holds the row, and nobody can renew the lease meanwhile.
const completionTimeout = 30 * time.Second

// budget is how long several completions may take together: batchTime, or a third of a short lease. What is undone
// must still have its lease.
func (c *consumer) budget() time.Duration { return min(batchTime, c.subscription.Lease/3) }

// errBatchTooLong: the rows of a batch are to be settled one at a time.
var errBatchTooLong = errors.New("the completions of a batch take too long together")
