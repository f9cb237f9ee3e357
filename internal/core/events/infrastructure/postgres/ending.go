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

// How many transactions of a consumer settle at once. While they do, what comes next gathers for the following ones.
const (
	completers  = 2 // settle what handlers have done
	loners      = 2 // settle one at a time what was undone and may be to blame, or may wait for long
	recorders   = 1 // settle the rest: failures, releases
	maxSettlers = completers + loners + recorders
)

const (
	// firstEndings is how many they settle together at first, maxEndings at most: as many as take batchTime.
	firstEndings = 10
	maxEndings   = 100
	// maxCompletions is how often a completion is tried that was undone for no fault of its own. What it
	// completes may have taken an hour.
	maxCompletions = 5
	// maxTries is how often an ending is tried that something around its completion undoes.
	maxTries = 20
	// maxRenewals is how often leases are renewed, at most, whose rows a transaction of ours may still have locked.
	maxRenewals = 5
	// triesWhenStopping is how often anything is tried once the worker stops.
	triesWhenStopping = 5
	// keepFor is how long a worker whose grace is over goes on to settle what handlers have done: for as long as they
	// may go on, and a little more. What is left of giveUpAfter is for giving back the rest.
	keepFor = abandonAfter + time.Second
)

// ending is what a lease comes to, or one of its handlers.
type ending struct {
	lease      *lease
	handler    events.Registration // that has executed; no name: none
	completion events.Completion   // its; nil: nothing to be written
	row        rowEnd
	verdict    verdict // of a row that is judged

	givenUp   error   // why, as the worker stops: the row is to be given back instead
	insteadOf *ending // that was given up, whose row it gives back

	alone    bool  // it has been undone, and is to be settled by itself
	waited   bool  // by itself, too, for as long as others may wait for it: it may now take longer
	xact     int64 // that may have committed it, since no answer came to its COMMIT; 0: none
	recalled bool  // it was written already, or what it stands in for was
	answer   chan answer
}

// rowEnd is what becomes of the row with an ending.
type rowEnd int

const (
	rowKept      rowEnd = iota // in flight: other handlers have still to run
	rowDelivered               // settled
	rowReleased                // given back
	rowJudged                  // retried or failed
)

// settling are endings to be settled, by so many transactions at once.
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

// What has to be over before an ending can be tried.
var (
	errRowLocked = errors.New("renew leases: the row is locked at the moment") // be it by our own heartbeat
	errUndecided = errors.New("an earlier attempt is being committed at the moment")
)

// errNoTime: the worker stops, and what handlers have done is settled no more.
var errNoTime = errors.New("the worker stops, and there was no time to settle it")

// beginError is an error of beginning to settle: nothing of it has been tried.
type beginError struct{ err error }

func (e *beginError) Error() string { return e.err.Error() }
func (e *beginError) Unwrap() error { return e.err }

// completionError is an error of a completion, as opposed to one of what is around it.
type completionError struct{ err error }

func (e *completionError) Error() string { return "completion: " + e.err.Error() }
func (e *completionError) Unwrap() error { return e.err }

// end settles e, together with others. Lost: the lease is, and nothing of e is written, or nobody knows. The error is a
// failure of e's handler, under the lease. Ctx is that of the work on the lease; when it is done, there are few tries,
// or one.
func (c *leased) end(ctx context.Context, e *ending) (lost bool, err error) {
	c.settles(e.lease, true)
	defer c.settles(e.lease, false)
	var wait backoff
	for tries, waits := 1, 0; ; {
		held, err := c.try(ctx, e)
		if err == nil {
			if !held {
				e.lease.cutOff(events.ErrLeaseLost)
				c.logLost(ctx, e.lease)
			}
			return !held, nil
		}
		delay := lockedPause
		switch c.after(ctx, e, err, tries) {
		case failsHandler:
			return false, err
		case givesUp:
			if stopping(ctx) && e.handler.Name != "" {
				e.givenUp = err
			} else {
				c.logLeft(ctx, e.lease, err)
			}
			return true, nil
		case waitsOn: // the settlers have waited already for a connection
			if _, unbegun := errors.AsType[*beginError](err); unbegun {
				break
			}
			waits++
			if delay = c.pauseLocked(waits); waits == waitsUnsaid {
				c.log.WarnContext(ctx, "settling waits for another transaction", e.lease.interrupted(err)...)
			}
		case triesSoon:
			tries++
		case triesAgain:
			tries++
			delay = wait.next(c.random)
			c.log.WarnContext(ctx, "settling interrupted, no attempt counted", append(e.lease.interrupted(err), logDelay, delay.Milliseconds())...)
		}
		if stopping(ctx) {
			pause(context.WithoutCancel(ctx), delay, nil)
		} else {
			pause(ctx, delay, nil)
		}
	}
}

// settles notes whether an ending of l is with the settlers, who hold its row, and alone find out whether it is lost.
func (c *leased) settles(l *lease, settling bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.settling = settling
}

// interrupted is what is logged of an error of settling l.
func (l *lease) interrupted(err error) []any {
	return []any{logEventID, l.envelope.EventID, logEventType, l.envelope.EventType,
		logErrorClass, classify(err, 0).class, logReason, err.Error()}
}

func stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), events.ErrStopping) }

// consequence is what follows from an attempt that came to nothing.
type consequence int

const (
	failsHandler consequence = iota
	givesUp
	waitsOn    // it does not count as a try
	triesSoon  // there is no time to lose
	triesAgain // after a while
)

// after says what follows from an error of settling e, in its n-th try.
func (c *leased) after(ctx context.Context, e *ending, err error, tries int) consequence {
	_, unbegun := errors.AsType[*beginError](err)
	waits := unbegun || errors.Is(err, errRowLocked) || errors.Is(err, errUndecided)
	completion, ofCompletion := errors.AsType[*completionError](err)
	switch {
	case errors.Is(err, errNoTime):
		return givesUp
	case ofCompletion && (tries >= maxCompletions || classify(completion.err, 0).disposition != free):
		return failsHandler
	case stopping(ctx) && waits && c.keeping.Err() == nil:
		return waitsOn // an outage, or a lock, may be over before the time is
	case stopping(ctx) && tries < triesWhenStopping:
		return triesSoon
	case ctx.Err() != nil:
		return givesUp
	case waits:
		return waitsOn
	case tries < maxTries:
		return triesAgain
	case e.handler.Name != "":
		return failsHandler
	default:
		return givesUp
	}
}

// try hands e to the settlers and awaits the answer.
func (c *leased) try(ctx context.Context, e *ending) (held bool, err error) {
	e.answer = make(chan answer, 1)
	c.mu.Lock()
	c.queue(ctx, c.settlersOf(e), e)
	c.mu.Unlock()
	a := <-e.answer
	return a.held, a.err
}

// settlersOf says who settles e. What claims no key need not wait for what completions wait for, or twins, least of all
// while the worker stops; and what was undone may hold up nothing but its like.
func (c *leased) settlersOf(e *ending) *settling {
	switch {
	case e.handler.Name == "":
		return &c.recording
	case e.alone:
		return &c.lone
	default:
		return &c.completing
	}
}

// queue adds e to what is to be settled. C is locked.
func (c *leased) queue(ctx context.Context, q *settling, e *ending) {
	if q != &c.recording {
		if c.keeping.Err() != nil {
			e.answer <- answer{err: errNoTime}
			return
		}
		ctx = c.keeping
	} else {
		ctx = context.WithoutCancel(ctx) // what is to be recorded is, also when the work on it is to stop
	}
	q.endings = append(q.endings, e)
	if q.settlers < q.settlersAtMost {
		q.settlers++
		c.wait.Go(func() { c.settle(ctx, q) })
	}
}

// keepNothing ends the wait of what handlers have done and nobody settles yet.
func (c *leased) keepNothing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range []*settling{&c.completing, &c.lone} {
		for _, e := range q.endings {
			e.answer <- answer{err: errNoTime}
		}
		q.endings = nil
	}
}

// settle settles what has gathered, until there is nothing.
func (c *leased) settle(ctx context.Context, q *settling) {
	var wait backoff
	for batch := c.gathered(q); len(batch) > 0; batch = c.gathered(q) {
		started, alone := c.now(), byItself(batch)
		held, err := c.settleTogether(ctx, batch)
		if err != nil && ctx.Err() != nil {
			for _, e := range batch {
				e.answer <- answer{err: errors.Join(errNoTime, err)}
			}
			continue
		}
		if _, unbegun := errors.AsType[*beginError](err); unbegun {
			c.unbegun(ctx, batch, err, &wait)
			continue
		}
		wait = backoff{}
		if err == nil {
			c.measured(q, len(batch), c.now().Sub(started))
		} else if len(batch) > 1 || !errors.Is(err, errRowLocked) {
			c.renewAfter(ctx, batch, err)
		}
		if err != nil && (len(batch) > 1 || errors.Is(err, errTooLong)) {
			c.undone(ctx, q, batch, err)
			continue
		}
		for _, e := range batch {
			e.alone, e.waited = err != nil, alone
			e.answer <- answer{held[e], err}
		}
	}
}

// unbegun waits for a connection, while what else comes gathers.
func (c *leased) unbegun(ctx context.Context, batch []*ending, err error, wait *backoff) {
	delay, stop := wait.next(c.random), batch[0].lease.stop
	if isClosed(stop) {
		delay, stop = firstBackoff/2, nil
	}
	c.log.WarnContext(ctx, "settling interrupted, no attempt counted", logEventType, c.subscription.EventType, logRows, len(batch),
		logErrorClass, classify(err, 0).class, logReason, err.Error(), logDelay, delay.Milliseconds())
	for _, e := range batch {
		e.answer <- answer{err: err}
	}
	pause(ctx, delay, stop)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// renewAfter renews the leases of a batch that err undid: nobody could meanwhile. What it cannot renew is for the heartbeat,
// which asks again soon, unless it is our own that has the rows locked: its server process may take a moment to end.
func (c *leased) renewAfter(ctx context.Context, batch []*ending, err error) {
	leases := make([]*lease, len(batch))
	for i, e := range batch {
		leases[i] = e.lease
	}
	stop := leases[0].stop
	ours := !answered(err) && !errors.Is(err, errRowLocked)
	for tries := 0; len(leases) > 0 && (tries == 0 || ours && tries < maxRenewals); tries++ {
		if isClosed(stop) {
			return // there is no time to lose
		}
		if tries > 0 {
			pause(ctx, lockedPause, stop)
		}
		held, err := c.renew(ctx, leases, make([]string, len(leases)))
		if err != nil {
			return
		}
		leases = slices.DeleteFunc(leases, func(l *lease) bool {
			_, known := held[l.token]
			return known
		})
	}
}

// undone has the endings of a batch that came to nothing settled after all: whichever is to blame by itself, the rest
// together, but fewer; or each by itself, if nobody knows.
func (c *leased) undone(ctx context.Context, q *settling, batch []*ending, err error) {
	c.log.DebugContext(ctx, "batch undone, its rows are settled apart", logEventType, c.subscription.EventType,
		logRows, len(batch), logErrorClass, classify(err, 0).class)
	known := errors.Is(err, errTooLong) || slices.ContainsFunc(batch, func(e *ending) bool { return e.alone })
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []*ending
	for _, e := range batch {
		e.alone = e.alone || !known
		if to := c.settlersOf(e); to != q {
			c.queue(ctx, to, e)
		} else {
			rest = append(rest, e)
		}
	}
	q.endings = append(rest, q.endings...)
	q.most = max(len(batch)/2, 1)
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
	d := &dispatchTx{consumer: c.consumer, shared: len(batch) > 1}
	if err := d.begin(ctx); err != nil {
		return nil, &beginError{err}
	}
	defer d.end()
	now, err := d.secure(ctx, batch)
	if err != nil {
		return nil, err
	}
	completed, err := d.completeAll(ctx, batch, &now.keys)
	if err != nil {
		return nil, err
	}
	limit, whole := d.commitLimit(batch)
	committing, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := d.commit(committing); err != nil {
		if committing.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("COMMIT did not end within %s; does something that is deferred to it wait, or take long? %w", limit, err)
		}
		if answered(err) && completed && (whole || committing.Err() == nil) {
			return nil, &completionError{err} // a deferred constraint; whose, only one by itself can tell
		}
		for _, e := range batch {
			if now.held[e] && !answered(err) {
				e.xact = now.xact
			}
		}
		return nil, err
	}
	for _, e := range batch {
		now.held[e] = now.held[e] || e.recalled
	}
	c.report(ctx, d.settled)
	return now.held, nil
}

// secured is what a transaction has found out and written before completions run in it.
type secured struct {
	xact int64 // its id
	held map[*ending]bool
	keys keyClaims // of what is held
}

// secure writes what becomes of the rows, where the lease is held, and claims the dedup keys of what is held. In bounded
// time: somebody may have locked a row, or a twin hold its key, and until it is over nobody can renew the leases.
func (d *dispatchTx) secure(ctx context.Context, batch []*ending) (now secured, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.patience(batch))
	defer cancel()
	if now.xact, err = d.queries.CurrentXact(ctx); err != nil {
		return now, fmt.Errorf("read the transaction's id: %w", err)
	}
	if now.held, err = d.write(ctx, batch); err != nil {
		return now, err
	}
	if err = d.recall(ctx, batch, now.held); err != nil {
		return now, err
	}
	for i, e := range batch {
		if now.held[e] && e.handler.Name != "" {
			now.keys.add(e.handler, e.lease.claimed, i)
		}
	}
	if len(now.keys.first) > 0 {
		err = d.claimKeys(ctx, &now.keys)
	}
	return now, err
}

// patience is how long a batch may wait for the rows and keys that others hold: nobody can renew its leases meanwhile. What is by
// itself for the first time may be as innocent as those behind it.
func (c *consumer) patience(batch []*ending) time.Duration {
	limit := min(max(c.subscription.Lease/6, minPatience), statementTimeout)
	if byItself(batch) && batch[0].waited {
		return limit
	}
	return min(limit, batchTime)
}

// commitLimit is how long a COMMIT may take, with what is deferred to it: of a batch as long as patience, by itself as long as a
// completion may, in whole the second time.
func (c *consumer) commitLimit(batch []*ending) (limit time.Duration, whole bool) {
	if !byItself(batch) {
		return c.patience(batch), false
	}
	limit = min(max(c.subscription.Lease/2, minPatience), statementTimeout)
	if batch[0].waited || limit <= firstCommitLimit {
		return limit, true
	}
	return firstCommitLimit, false
}

const (
	// minPatience is how long either may be, however short the lease.
	minPatience = 250 * time.Millisecond
	// firstCommitLimit is for the first COMMIT by itself, and for that of a row-locked batch: most that are slow end by then, and
	// others wait for it.
	firstCommitLimit = 3 * batchTime
)

// write writes what becomes of the rows, where the lease is held.
func (d *dispatchTx) write(ctx context.Context, batch []*ending) (held map[*ending]bool, err error) {
	rows := make(map[rowEnd][]claimed)
	for _, e := range batch {
		rows[e.row] = append(rows[e.row], e.lease.claimed)
	}
	ours := make(map[uuid.UUID]bool, len(batch)) // what is known of a token
	if err := d.lockAtOnce(ctx, batch, ours); err != nil {
		return nil, err
	}
	for _, settled := range []struct {
		rows []claimed
		what string
		by   func(context.Context, coredb.DeliverLeasedParams) ([]uuid.UUID, error)
	}{
		{rows[rowDelivered], "settle as delivered", d.queries.DeliverLeased},
		{rows[rowReleased], "release", func(ctx context.Context, p coredb.DeliverLeasedParams) ([]uuid.UUID, error) {
			return d.queries.Release(ctx, coredb.ReleaseParams(p))
		}},
	} {
		if len(settled.rows) == 0 {
			continue
		}
		ids, times := namesOf(settled.rows)
		tokens, err := settled.by(ctx, coredb.DeliverLeasedParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(settled.rows)})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", settled.what, err)
		}
		for _, token := range tokens {
			ours[token] = true
		}
	}
	held = make(map[*ending]bool, len(batch))
	for _, e := range batch {
		held[e] = ours[e.lease.token]
		switch e.row {
		case rowKept: // renewed
		case rowDelivered, rowReleased:
			if held[e] {
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

// lockAtOnce renews the leases of rows that are kept, and of those to be recorded, which are in no hurry themselves while the
// others are, and notes in ours what is known of them. It waits for none that somebody has locked: an earlier attempt that
// may yet be committed has, until that is decided, whatever pg_xact_status says of it.
func (d *dispatchTx) lockAtOnce(ctx context.Context, batch []*ending, ours map[uuid.UUID]bool) error {
	var rows []claimed
	for _, e := range batch {
		if e.atOnce() {
			rows = append(rows, e.lease.claimed)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := heartbeat(ctx, d.queries, rows, make([]string, len(rows)), ours); err != nil {
		return fmt.Errorf("renew leases: %w", err)
	}
	locked := false
	for _, e := range batch {
		if _, known := ours[e.lease.token]; e.atOnce() && !known {
			e.alone, locked = true, true
		}
	}
	if locked {
		return errRowLocked
	}
	return nil
}

// atOnce reports whether e is settled only if its row is not locked.
func (e *ending) atOnce() bool { return e.row == rowKept || e.handler.Name == "" }

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

// recall finds endings that are not held because they are written already, by a transaction to whose COMMIT no answer
// came. The server knows what became of it; but after a failover the id may be another's, so that of a handler's the dedup
// rows have to be there, too.
func (d *dispatchTx) recall(ctx context.Context, batch []*ending, held map[*ending]bool) error {
	for _, e := range batch {
		e.recalled = false
		of := e
		if e.insteadOf != nil {
			of = e.insteadOf
		}
		if held[e] || of.xact == 0 {
			continue
		}
		switch status, err := d.queries.XactStatus(ctx, of.xact); {
		case err != nil:
			return fmt.Errorf("read what became of an earlier attempt: %w", err)
		case status == "in progress":
			e.alone = true
			return errUndecided
		case status != "committed":
			continue
		}
		if of.row == rowKept || of.row == rowDelivered {
			unhandled, err := d.unhandled(ctx, of.lease.claimed)
			if err != nil {
				return err
			}
			missing := slices.ContainsFunc(unhandled, func(r events.Registration) bool { return r.Name == of.handler.Name })
			if missing || of.row == rowDelivered && len(unhandled) > 0 {
				continue
			}
		}
		e.recalled = true
		if of.row != rowKept {
			d.settled = append(d.settled, of.settlement())
		}
	}
	return nil
}

// completeAll runs the completions of those whose dedup keys were free. A key that was taken means that another
// execution was completed: this one has written nothing.
func (d *dispatchTx) completeAll(ctx context.Context, batch []*ending, keys *keyClaims) (ran bool, err error) {
	started := d.now()
	for i, e := range batch {
		if e.completion == nil || !keys.runs(e.handler, e.lease.claimed, i) {
			continue
		}
		limit, why := d.completionLimit(e.handler)
		left := d.budget() - d.now().Sub(started)
		bounded := !byItself(batch) && left < limit
		if bounded {
			limit, why = left, "in a batch"
		}
		if limit <= 0 {
			return true, errTooLong
		}
		ran = true
		begun := d.now()
		if err := d.complete(ctx, e, limit, why); err != nil {
			e.alone = true
			if bounded && d.now().Sub(begun) >= limit {
				err = errors.Join(errTooLong, err)
			}
			return true, err
		}
	}
	if !ran {
		return false, nil
	}
	if err := d.act(ctx, workerRole, noWorkspace); err != nil {
		return true, d.completionFailed(fmt.Errorf("returned nil but left the transaction unusable: %w", err))
	}
	return true, nil
}

// completionLimit is how long a completion may take by itself, and why: its transaction holds the row, and nobody can
// renew the lease meanwhile.
func (c *consumer) completionLimit(r events.Registration) (limit time.Duration, why string) {
	limit, why = r.CallTimeout(), "its handler's timeout"
	if limit > completionTimeout {
		limit, why = completionTimeout, "as long as any completion may take"
	}
	if half := c.subscription.Lease / 2; limit > half {
		limit, why = half, "half of the lease"
	}
	return limit, why
}

// complete runs one completion as its context's role, for as long as limit.
func (d *dispatchTx) complete(ctx context.Context, e *ending, limit time.Duration, why string) error {
	role, err := scopeRole(e.handler.Scope())
	if err != nil {
		return &completionError{err}
	}
	if err := d.act(ctx, role, e.lease.envelope.WorkspaceID); err != nil {
		return d.completionFailed(fmt.Errorf("act as %s: %w", role, err))
	}
	grace := min(abandonAfter, max(d.subscription.Lease/6, minPatience)) // the leases of all in its batch wait for it
	err = d.withHandlerTx(ctx, limit+abandonAfter, func(ctx context.Context, tx *handlerTx) error {
		return runGuardedFor(ctx, limit, grace, func(ctx context.Context) error {
			err := e.completion(ctx, tx)
			if overran(ctx, err) {
				return fmt.Errorf("did not end within %s (%s); does it wait for a lock? %w", limit, why, err)
			}
			return err
		})
	})
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

// completionTimeout is how long one completion may take at most, if half of the lease is not less.
const completionTimeout = 30 * time.Second

// budget is how long several completions may take together: batchTime, or a third of a short lease. What is undone
// must still have its lease, which may have been renewed a third of its length before.
func (c *consumer) budget() time.Duration { return min(batchTime, c.subscription.Lease/3) }

// errTooLong: completions take too long for others to wait for them.
var errTooLong = errors.New("completions take too long")

// byItself reports whether what is settled holds up nothing but its like.
func byItself(batch []*ending) bool {
	return len(batch) == 1 && batch[0].alone && batch[0].handler.Name != ""
}
