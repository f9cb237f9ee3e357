package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// fullPollShare: a poll below the watermarks is followed by none for so many times as long as it took, so that such
// polls take 2 % of the time at most.
const fullPollShare = 50

// maxHeld is how many rows that are being handled a poll passes over. With more, as in a backlog, it passes over none:
// that costs a claim that finds nothing.
const maxHeld = 100

// Consumer is the consumer of an event type, as the notifier sees it.
type Consumer struct {
	// Wake makes sure that a claim begins after this call. Crashed says that rows with crashes are due. Ctx is for the
	// work that follows.
	Wake      func(ctx context.Context, crashed bool)
	Watermark Watermark
	// Held returns the rows that are being handled, whose settling wakes the consumer again where that is needed.
	Held func() (ids []string, occurredAt []time.Time)
	// Progress returns a number that grows while the consumer claims, handles or settles.
	Progress func() int64
}

// stall is since when a type has had due events, and how far its consumer was then.
type stall struct {
	since    time.Time
	progress int64
}

// Watermark is the due time from which the claims of a consumer look.
type Watermark interface {
	Get() time.Time
	Lower(to time.Time)
}

// Config of a Notifier.
type Config struct {
	Direct       *pgx.ConnConfig // of the LISTEN connection: straight to Postgres, no transaction pooler
	Pool         *pgxpool.Pool
	PollInterval time.Duration
	Consumers    map[string]Consumer // by event type
	Channels     []string            // on which their events are announced, in order
	Journal      *journal.Journal
	// Reap is told in how many seconds rows of dead workers, or leases, may be reaped, negative for never. It returns
	// when to ask again.
	Reap      func(seconds float64, grace time.Duration) time.Duration
	Health    *Health
	Log       *slog.Logger
	Telemetry *telemetry.Telemetry
}

// Notifier wakes the consumers of a process when their events are due.
type Notifier struct {
	config     Config
	eventTypes []string // in order
	testing    string   // the channel of self-tests

	work       context.Context // of the claims that it wakes
	open       *listenConn     // left open by Run
	polledAt   time.Time
	fullPollAt time.Time // not before
	probeAt    time.Time // when to look for dead workers next, not before
	probeAlone bool      // that failed together with a poll, which must not fail for it
	poolPollAt time.Time // when to poll through the pool after a failure, not before; zero: the last poll did not fail
	poolWait   pgtx.Backoff
	connected  bool      // it has listened
	lostAt     time.Time // when the LISTEN connection was lost; zero: it is open
	wait       pgtx.Backoff
	stalls     map[string]stall // by event type
	logged     string           // the health that was logged last
	sending    sync.WaitGroup   // self-tests
}

// New returns a Notifier. Run starts it.
func New(config Config) *Notifier {
	return &Notifier{
		config: config, eventTypes: slices.Sorted(maps.Keys(config.Consumers)),
		// one for the process: a subscription that cannot be undone behind a pooler must not multiply
		stalls:  make(map[string]stall),
		testing: fmt.Sprintf("spectral_test_%08x%08x", rand.Uint32(), rand.Uint32()),
	}
}

// Run listens and polls until ctx is done, and reconnects with growing delays. Without a connection it polls through
// the pool. Claims that it wakes live on work. It returns early with a [*journal.HandlersDifferError]. Otherwise it
// leaves its session open: while handlers run, the worker is alive. End that with Unregister.
func (n *Notifier) Run(ctx, work context.Context) error {
	defer n.sending.Wait()
	n.work = work
	for ctx.Err() == nil {
		conn, err := n.connect(ctx)
		if err == nil {
			if n.connected {
				n.config.Telemetry.Reconnected(ctx)
			}
			n.connected = true
			err = n.watch(ctx, conn)
		}
		if ctx.Err() != nil {
			n.open = conn
			return nil
		}
		if differ, ok := errors.AsType[*journal.HandlersDifferError](err); ok {
			return differ
		}
		if n.lostAt.IsZero() {
			n.lostAt = time.Now()
		}
		state := Reconnecting
		was, _ := n.config.Health.Now()
		if errors.Is(err, errNotificationsLost) || was == Polling || time.Since(n.lostAt) >= pgtx.MaxBackoff {
			state = Polling
		}
		delay := n.wait.Next()
		n.setUnhealthy(ctx, state, err, delay)
		if conn != nil {
			conn.close()
		}
		waiting, done := context.WithTimeout(ctx, delay)
		_, err = n.pollThroughPool(ctx, waiting, n.polledAt)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

// Unregister ends the session that Run left open, and says that the worker has ended in good order.
func (n *Notifier) Unregister(ctx context.Context) {
	if n.open != nil {
		n.config.Journal.Unregister(ctx, n.open.conn, n.config.Channels)
		n.open.close()
	}
}

// setListening sets the health, and logs it when it changes.
func (n *Notifier) setListening(ctx context.Context) {
	n.wait, n.lostAt = pgtx.Backoff{}, time.Time{}
	n.config.Health.Set(Listening, "")
	if n.logged != string(Listening) {
		n.logged = string(Listening)
		n.config.Log.InfoContext(ctx, "listening", pgtx.LogChannels, n.config.Channels)
	}
}

// setUnhealthy sets the health, and logs it when the state or the kind of reason changes.
func (n *Notifier) setUnhealthy(ctx context.Context, state State, err error, delay time.Duration) {
	reason, class, code := explain(err)
	n.config.Health.Set(state, reason)
	if now := string(state) + class + code; n.logged != now {
		n.logged = now
		n.config.Log.WarnContext(ctx, "no LISTEN connection: events wait for the poll", pgtx.LogState, state,
			pgtx.LogReason, reason, pgtx.LogErrorClass, class, pgtx.LogDelay, delay.Milliseconds())
	}
}

// connect opens the LISTEN connection. LISTEN is committed before the first poll: in the other order neither would see
// a row that is committed between the two. While it takes long, polls go on through the pool.
func (n *Notifier) connect(ctx context.Context) (conn *listenConn, err error) {
	opening, giveUp := context.WithCancel(ctx)
	waiting, opened := context.WithCancel(ctx)
	var dialing sync.WaitGroup
	dialing.Go(func() {
		defer opened()
		if conn, err = dial(opening, n); err == nil {
			err = conn.open(opening)
		}
	})
	since := n.polledAt
	if since.IsZero() {
		since = time.Now() // the first poll should be the connection's
	}
	back, refused := n.pollThroughPool(ctx, waiting, since)
	for back && refused == nil {
		back, refused = n.pollThroughPool(ctx, waiting, n.polledAt)
	}
	giveUp()
	dialing.Wait()
	if err = cmp.Or(refused, err); err == nil {
		err = n.config.Journal.Register(ctx, conn.conn)
	}
	if err != nil && conn != nil {
		conn.close()
		conn = nil
	}
	return conn, err
}

// pollThroughPool polls without a LISTEN connection whenever the poll, or a scheduled event that it saw, is due,
// counted from the poll at since. It ends when waiting is done, or when the database is back after a failure. It first
// checks whether the worker may work, as it is not registered or has lost its session: its error is a
// [*journal.HandlersDifferError]. After any other it polls less often, and does not report it: the health already says
// that the database cannot be reached.
func (n *Notifier) pollThroughPool(ctx, waiting context.Context, since time.Time) (back bool, err error) {
	for next := n.config.PollInterval - time.Since(since); !back; {
		pgtx.Pause(waiting, max(next, time.Until(n.poolPollAt)), nil)
		select {
		case <-waiting.Done():
			return false, nil
		default:
		}
		n.polledAt = time.Now()
		n.config.Health.BeginPoll()
		next = n.config.PollInterval
		err := pgtx.InTx(ctx, n.config.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
			queries := coredb.New(tx)
			if err := n.config.Journal.CheckHandlers(ctx, queries); err != nil {
				return err
			}
			found, err := n.poll(ctx, queries, nil, false)
			if err == nil {
				next = found.next
			}
			return err
		})
		if differ, ok := errors.AsType[*journal.HandlersDifferError](err); ok {
			return false, differ
		}
		if err != nil {
			n.poolPollAt = time.Now().Add(n.poolWait.Next())
			continue
		}
		back = !n.poolPollAt.IsZero()
		n.poolPollAt, n.poolWait = time.Time{}, pgtx.Backoff{}
		_, _ = n.probeWorkers(ctx, nil) // so that workers that cannot listen reap as well
	}
	return true, nil
}

// watch polls and waits in turns, on the LISTEN connection; docs/decisions/0003 says why no event is left behind. What
// the consumers are doing makes no difference.
func (n *Notifier) watch(ctx context.Context, l *listenConn) error {
	notified, scheduled := true, false // it may have been, before it listened
	for {
		var result found
		var err error
		if !notified {
			if result, err = n.pollOn(ctx, l, nil); result.fresh && !scheduled {
				n.config.Telemetry.FoundSilent(ctx)
			}
		}
		if err == nil && (notified || result.due) { // what a timer finds may be the rows of silent producers
			result, err = n.pollUntilBarrier(ctx, l)
		}
		if err != nil {
			return err
		}
		wait := n.config.PollInterval - time.Since(n.polledAt)
		scheduled = result.next < wait
		notified, err = n.awaitDue(ctx, l, min(result.next, wait))
		if err != nil {
			return err
		}
		if notified {
			n.config.Telemetry.Notified(ctx)
		}
	}
}

// pollUntilBarrier tries the barrier and polls, until the barrier was passed. The poll after it sees the rows of every
// producer that stayed silent; later producers notify.
func (n *Notifier) pollUntilBarrier(ctx context.Context, l *listenConn) (found, error) {
	for wait := pgtx.BarrierFirstPause; ; wait = min(2*wait, pgtx.BarrierMaxPause) {
		result, err := n.pollOn(ctx, l, n.config.Channels)
		if result.passed || err != nil {
			return result, err
		}
		n.config.Telemetry.BarrierRefused(ctx)
		if _, err := l.await(ctx, wait); err != nil {
			return found{}, err
		}
		if _, err := n.probeWorkers(ctx, l); err != nil { // the barrier may take long
			return found{}, err
		}
	}
}

// found is the result of a poll.
type found struct {
	passed bool // the barrier, on every channel that the poll was to try it on
	due    bool
	fresh  bool          // a type has due events that had none at the poll before
	next   time.Duration // until the next event that is not due yet
}

// pollOn polls on the LISTEN connection, where a poll is a ping as well, after it has tried the barrier on channels. It
// keeps polls MinPollGap apart.
func (n *Notifier) pollOn(ctx context.Context, l *listenConn, channels []string) (result found, err error) {
	pgtx.Pause(ctx, pgtx.MinPollGap-time.Since(n.polledAt), nil)
	err = l.ask(ctx, "poll for due events", func(ctx context.Context) error {
		result, err = n.poll(ctx, l.queries, channels, !n.probeAlone && !time.Now().Before(n.probeAt.Add(-pgtx.PingSlack)))
		return err
	})
	if err == nil {
		n.setListening(ctx)
	}
	return result, err
}

// poll tries the barrier on channels, finds the event types that have due events, and wakes their consumers. Once in a
// poll interval, and less often if that is slow, it looks below the consumers' watermarks as well. With probe it does
// what probeWorkers does, too: an idle worker then sends one statement instead of two.
func (n *Notifier) poll(ctx context.Context, queries *coredb.Queries, channels []string, probe bool) (found, error) {
	started := time.Now()
	n.polledAt = started
	n.config.Health.BeginPoll()
	full := !started.Before(n.fullPollAt)
	watermarks := make([]time.Time, len(n.eventTypes))
	if !full {
		for i, eventType := range n.eventTypes {
			watermarks[i] = n.config.Consumers[eventType].Watermark.Get()
		}
	}
	held, heldAt := []string{}, []time.Time{}
	for _, consumer := range n.config.Consumers {
		ids, occurredAt := consumer.Held()
		held, heldAt = append(held, ids...), append(heldAt, occurredAt...)
	}
	if len(held) > maxHeld {
		held, heldAt = held[:0], heldAt[:0]
	}
	rows, err := queries.Poll(ctx, coredb.PollParams{
		Channels: channels, Generation: int64(n.config.Journal.Generation),
		EventTypes: n.eventTypes, Watermarks: watermarks, Held: held, HeldAt: heldAt,
		Probe: probe, Worker: n.config.Journal.Worker, GraceSeconds: n.config.Journal.DeadGrace().Seconds(),
	})
	if full {
		n.fullPollAt = started.Add(max(n.config.PollInterval, fullPollShare*time.Since(started)))
	}
	if err != nil {
		n.probeAlone = n.probeAlone || probe
		return found{}, err
	}
	if probe {
		n.probeAt = started.Add(n.config.Reap(rows[0].DueIn, n.config.Journal.DeadGrace()))
	}
	result := found{next: n.config.PollInterval}
	stalled := make(map[string]time.Time)
	for _, row := range rows {
		result.passed = row.Passed
		if !row.OldestDue.IsZero() {
			result.due = true
			consumer := n.config.Consumers[row.EventType]
			if full {
				consumer.Watermark.Lower(row.OldestDue)
			}
			if _, before := n.stalls[row.EventType]; !before {
				result.fresh = true
			}
			if s, progress := n.stalls[row.EventType], consumer.Progress(); s.since.IsZero() || s.progress != progress {
				n.stalls[row.EventType] = stall{started, progress}
			}
			stalled[row.EventType] = n.stalls[row.EventType].since
			consumer.Wake(n.work, row.Crashed)
		}
		if row.NextIn >= 0 {
			seconds := min(row.NextIn, n.config.PollInterval.Seconds()) // a year would overflow
			result.next = min(result.next, pgtx.Seconds(seconds)+pgtx.RoundUp)
		}
	}
	long := false
	for eventType, s := range n.stalls {
		if _, due := stalled[eventType]; !due {
			delete(n.stalls, eventType)
		} else if started.Sub(s.since) >= n.config.PollInterval {
			long = true
		}
	}
	if long { // another worker may be handling the events
		held, _ := queries.TypesHeld(ctx, n.config.Journal.Worker) // an error is no reason to wake consumers later
		for _, eventType := range held {
			if _, due := stalled[eventType]; due {
				n.stalls[eventType] = stall{started, n.stalls[eventType].progress}
				stalled[eventType] = started
			}
		}
	}
	n.config.Health.polled(stalled)
	return result, nil
}

// awaitDue waits for a notification or the end of d, and looks for dead workers until then.
func (n *Notifier) awaitDue(ctx context.Context, l *listenConn, d time.Duration) (notified bool, err error) {
	end := time.Now().Add(d)
	for {
		next, err := n.probeWorkers(ctx, l)
		if err != nil {
			return false, err
		}
		left := time.Until(end)
		last := left <= next+pgtx.PingSlack // the poll probes too
		if !last {
			left = next
		}
		if notified, err := l.idle(ctx, left); notified || err != nil || last {
			return notified, err
		}
	}
}

// probeWorkers tells the reaper of dead workers and leases that ran out, and returns when to ask again. Without a
// LISTEN connection it asks through the pool.
func (n *Notifier) probeWorkers(ctx context.Context, l *listenConn) (time.Duration, error) {
	now := time.Now()
	if now.Before(n.probeAt) {
		return n.probeAt.Sub(now), nil
	}
	grace, due := n.config.Journal.DeadGrace(), 0.0
	probe := func(ctx context.Context, queries *coredb.Queries) (err error) {
		due, err = queries.ProbeWorkers(ctx, coredb.ProbeWorkersParams{
			Worker: n.config.Journal.Worker, GraceSeconds: grace.Seconds(),
		})
		return err
	}
	var err error
	if l != nil {
		err = l.ask(ctx, "look for dead workers", func(ctx context.Context) error { return probe(ctx, l.queries) })
	} else {
		grace = pgtx.OutageGrace
		err = pgtx.InTx(ctx, n.config.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
			return probe(ctx, coredb.New(tx))
		})
	}
	next := pgtx.ProbeInterval
	if pg, refused := errors.AsType[*pgconn.PgError](err); refused && pg.Code != pgerrcode.ReadOnlySQLTransaction {
		n.config.Log.WarnContext(ctx, "could not look for dead workers", pgtx.LogReason, err.Error())
	} else if err != nil {
		return 0, err
	} else {
		next, n.probeAlone = n.config.Reap(due, grace), false
	}
	n.probeAt = now.Add(next)
	return next, nil
}
