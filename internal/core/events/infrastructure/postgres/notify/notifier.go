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

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// fullPollShare: a poll below the watermarks is followed by none for so many times as long as it took, so that such
// polls take 2 % of the time at most.
const fullPollShare = 50

// Consumer is the consumer of an event type, as the notifier sees it.
type Consumer struct {
	// Wake makes sure that a claim begins after this call. Crashed says that rows with crashes are due. Ctx is for the
	// work that follows.
	Wake      func(ctx context.Context, crashed bool)
	Watermark Watermark
}

// Watermark is the due time from which the claims of a consumer look.
type Watermark interface {
	Get() time.Time
	Lower(to time.Time)
}

// Reaper is told when rows of dead workers, or leases, may be reaped.
type Reaper interface {
	// Expect takes in how many seconds from now that is, negative for never, and returns when to ask again.
	Expect(seconds float64, grace time.Duration) time.Duration
}

// Config of a Notifier.
type Config struct {
	Generation   events.Generation
	Direct       *pgx.ConnConfig // of the LISTEN connection: straight to Postgres, no transaction pooler
	Pool         *pgxpool.Pool
	PollInterval time.Duration
	Consumers    map[string]Consumer // by event type
	Channels     []string         // on which their events are announced, in order
	Journal      *journal.Journal
	Reaper       Reaper
	Health       *Health
	Log          *slog.Logger
	OnListening  func() // called whenever it begins to listen; must not block; may be nil
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
	poolPoll   pollBackoff
	logged     string         // the health that was logged last
	sending    sync.WaitGroup // self-tests
}

// New returns a Notifier. Run starts it.
func New(config Config) *Notifier {
	return &Notifier{
		config: config, eventTypes: slices.Sorted(maps.Keys(config.Consumers)),
		// one for the process: a subscription that cannot be undone behind a pooler must not multiply
		testing: fmt.Sprintf("spectral_test_%08x%08x", rand.Uint32(), rand.Uint32()),
	}
}

// Run listens and polls until ctx is done, and reconnects with growing delays. Without a connection it polls through
// the pool. Claims that it wakes live on work. It returns early with a [*journal.HandlersDifferError]. Otherwise it
// leaves its session open: while handlers run, the worker is alive. End that with Unregister.
func (n *Notifier) Run(ctx, work context.Context) error {
	defer n.sending.Wait()
	n.work = work
	backoff := pgtx.FirstBackoff
	var lostAt time.Time
	for ctx.Err() == nil {
		conn, err := n.connect(ctx)
		if err == nil {
			err = n.watch(ctx, conn, func() {
				backoff, lostAt = pgtx.FirstBackoff, time.Time{}
				n.setListening(ctx)
			})
		}
		if ctx.Err() != nil {
			n.open = conn
			return nil
		}
		if differ, ok := errors.AsType[*journal.HandlersDifferError](err); ok {
			return differ
		}
		if lostAt.IsZero() {
			lostAt = time.Now()
		}
		state := Reconnecting
		was, _ := n.config.Health.Now()
		if errors.Is(err, errNotificationsLost) || was == Polling ||
			backoff >= pgtx.MaxBackoff || time.Since(lostAt) >= pgtx.MaxBackoff {
			state = Polling
		}
		n.setUnhealthy(ctx, state, err, pgtx.Jittered(backoff))
		if conn != nil {
			conn.close()
		}
		wait, done := context.WithTimeout(ctx, pgtx.Jittered(backoff))
		_, err = n.pollThroughPoolUntil(ctx, wait.Done(), n.polledAt)
		done()
		if err != nil {
			return err
		}
		backoff = min(2*backoff, pgtx.MaxBackoff)
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
	n.config.Health.Set(Listening, "")
	if n.logged == string(Listening) {
		return
	}
	n.logged = string(Listening)
	n.config.Log.InfoContext(ctx, "listening", pgtx.LogChannels, n.config.Channels)
	if n.config.OnListening != nil {
		n.config.OnListening()
	}
}

// setUnhealthy sets the health, and logs it when the state or the kind of reason changes.
func (n *Notifier) setUnhealthy(ctx context.Context, state State, err error, delay time.Duration) {
	reason := reasonText(err)
	n.config.Health.Set(state, reason)
	kind, class := reasonKind(err)
	if now := string(state) + " " + kind; n.logged != now {
		n.logged = now
		n.config.Log.WarnContext(ctx, "no LISTEN connection: events wait for the poll", pgtx.LogState, state,
			pgtx.LogReason, reason, pgtx.LogErrorClass, class, pgtx.LogDelay, delay.Milliseconds())
	}
}

// connect opens the LISTEN connection. LISTEN is committed before the first poll: in the other order neither would see
// a row that is committed between the two. While it takes long, polls go on through the pool.
func (n *Notifier) connect(ctx context.Context) (conn *listenConn, err error) {
	opening, giveUp := context.WithCancel(ctx)
	defer giveUp()
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		conn, err = dial(opening, n.config.Direct, n.config.Pool, n.config.Channels, n.testing, &n.sending)
		if err == nil {
			err = conn.open(opening)
		}
	}()
	since := n.polledAt
	if since.IsZero() {
		since = time.Now() // the first poll should be the connection's
	}
	back, refused := n.pollThroughPoolUntil(opening, opened, since)
	for back && refused == nil {
		back, refused = n.pollThroughPoolUntil(opening, opened, n.polledAt)
	}
	giveUp()
	<-opened
	if err = cmp.Or(refused, err); err == nil {
		err = n.config.Journal.Register(ctx, conn.conn)
	}
	if err != nil && conn != nil {
		conn.close()
		conn = nil
	}
	return conn, err
}

// pollBackoff is when the poll through the pool is due.
type pollBackoff struct {
	at    time.Time     // not before
	delay time.Duration // after the next failure; zero while there is none
}

// pollThroughPoolUntil polls through the pool whenever the poll, or a scheduled event that it saw, is due, counted from
// the poll at since, until end is closed or the database is back after a failure. It polls less often while polls fail.
// Its error is a [*journal.HandlersDifferError].
func (n *Notifier) pollThroughPoolUntil(ctx context.Context, end <-chan struct{},
	since time.Time) (back bool, err error) {
	next := n.config.PollInterval - time.Since(since)
	for {
		poll := time.NewTimer(max(next, time.Until(n.poolPoll.at), 0))
		select {
		case <-end:
			poll.Stop()
			return false, nil
		case <-ctx.Done():
			poll.Stop()
			return false, nil
		case <-poll.C:
		}
		failing := n.poolPoll.delay > 0
		if next, err = n.pollThroughPool(ctx); err != nil {
			return false, err
		}
		if failing && n.poolPoll.delay == 0 {
			return true, nil
		}
	}
}

// pollThroughPool polls without a LISTEN connection, and returns the time until the next poll. It first checks whether
// the worker may work, as it is not registered or has lost its session. It does not report other errors: the health
// already says that the database cannot be reached.
func (n *Notifier) pollThroughPool(ctx context.Context) (time.Duration, error) {
	n.polledAt = time.Now()
	next := n.config.PollInterval
	err := pgtx.InTx(ctx, n.config.Pool, pgtx.WorkerRole, func(tx pgx.Tx) error {
		queries := coredb.New(tx)
		if err := n.config.Journal.CheckHandlers(ctx, queries); err != nil {
			return err
		}
		found, err := n.poll(ctx, queries)
		if err == nil {
			next = found.next
		}
		return err
	})
	if differ, ok := errors.AsType[*journal.HandlersDifferError](err); ok {
		return 0, differ
	}
	if err != nil {
		n.poolPoll.delay = min(max(2*n.poolPoll.delay, pgtx.FirstBackoff), pgtx.MaxBackoff)
		n.poolPoll.at = time.Now().Add(pgtx.Jittered(n.poolPoll.delay))
	} else {
		n.poolPoll = pollBackoff{}
		n.probeWorkersThroughPool(ctx)
	}
	return next, nil
}

// watch polls and waits in turns, on the LISTEN connection; docs/decisions/0003 says why no event is left behind. What
// the consumers are doing makes no difference. Connected is called once the first poll was answered.
func (n *Notifier) watch(ctx context.Context, l *listenConn, connected func()) error {
	notified := true // it may have been, before it listened
	for first := true; ; first = false {
		found, err := n.pollOn(ctx, l)
		if err != nil {
			return err
		}
		if first {
			connected()
		}
		// what a timer finds may be the rows of silent producers
		if notified || found.due {
			if found, err = n.pollUntilBarrier(ctx, l); err != nil {
				return err
			}
		}
		notified, err = n.awaitDue(ctx, l, min(found.next, n.config.PollInterval-time.Since(n.polledAt)))
		if err != nil {
			return err
		}
		if notified {
			n.pauseForGap(ctx)
		}
	}
}

// pauseForGap keeps polls that notifications ask for MinPollGap apart.
func (n *Notifier) pauseForGap(ctx context.Context) {
	pgtx.Pause(ctx, pgtx.MinPollGap-time.Since(n.polledAt), nil)
}

// pollUntilBarrier polls until the barrier is passed, and then once more: that poll sees the rows of every producer
// that stayed silent, and those that come after it notify.
func (n *Notifier) pollUntilBarrier(ctx context.Context, l *listenConn) (found, error) {
	for wait := pgtx.BarrierFirstPause; ; wait = min(2*wait, pgtx.BarrierMaxPause) {
		passed, err := l.barrier(ctx)
		if err != nil {
			return found{}, err
		}
		if !passed {
			notified, err := l.await(ctx, wait)
			if err == nil && notified {
				n.pauseForGap(ctx)
			}
			if err == nil {
				_, err = n.probeWorkers(ctx, l) // the barrier may take long
			}
			if err != nil {
				return found{}, err
			}
		}
		result, err := n.pollOn(ctx, l)
		if passed || err != nil {
			return result, err
		}
	}
}

// found is the result of a poll.
type found struct {
	due  bool
	next time.Duration // until the next event that is not due yet
}

// pollOn polls on the LISTEN connection, where a poll is a ping as well.
func (n *Notifier) pollOn(ctx context.Context, l *listenConn) (result found, err error) {
	err = l.ask(ctx, "poll for due events", func(ctx context.Context) error {
		result, err = n.poll(ctx, l.queries)
		return err
	})
	return result, err
}

// poll finds the event types that have due events, and wakes their consumers. Once in a poll interval, and less often
// if that is slow, it looks below the consumers' watermarks as well.
func (n *Notifier) poll(ctx context.Context, queries *coredb.Queries) (found, error) {
	started := time.Now()
	n.polledAt = started
	full := !started.Before(n.fullPollAt)
	watermarks := make([]time.Time, len(n.eventTypes))
	if !full {
		for i, eventType := range n.eventTypes {
			watermarks[i] = n.config.Consumers[eventType].Watermark.Get()
		}
	}
	rows, err := queries.Poll(ctx, coredb.PollParams{
		Generation: int64(n.config.Generation), EventTypes: n.eventTypes, Watermarks: watermarks,
	})
	if full {
		n.fullPollAt = started.Add(max(n.config.PollInterval, fullPollShare*time.Since(started)))
	}
	if err != nil {
		return found{}, err
	}
	result := found{next: n.config.PollInterval}
	for _, row := range rows {
		if !row.OldestDue.IsZero() {
			result.due = true
			consumer := n.config.Consumers[row.EventType]
			if full {
				consumer.Watermark.Lower(row.OldestDue)
			}
			consumer.Wake(n.work, row.Crashed)
		}
		if row.NextIn >= 0 {
			seconds := min(row.NextIn, n.config.PollInterval.Seconds()) // a year would overflow
			result.next = min(result.next, pgtx.Seconds(seconds)+pgtx.RoundUp)
		}
	}
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
		if notified, err := l.idle(ctx, min(left, next)); notified || err != nil || left <= next {
			return notified, err
		}
	}
}

// probeWorkers tells the reaper if there are dead workers or leases that ran out, and returns when to ask again.
func (n *Notifier) probeWorkers(ctx context.Context, l *listenConn) (time.Duration, error) {
	now := time.Now()
	if now.Before(n.probeAt) {
		return n.probeAt.Sub(now), nil
	}
	grace := n.config.Journal.DeadGrace()
	var due float64
	err := l.ask(ctx, "look for dead workers", func(ctx context.Context) (err error) {
		due, err = l.queries.ProbeWorkers(ctx, n.probe(grace))
		return err
	})
	next := pgtx.ProbeInterval
	if pg, refused := errors.AsType[*pgconn.PgError](err); refused && pg.Code != pgerrcode.ReadOnlySQLTransaction {
		n.config.Log.WarnContext(ctx, "could not look for dead workers", pgtx.LogReason, err.Error())
	} else if err != nil {
		return 0, err
	} else {
		next = n.config.Reaper.Expect(due, grace)
	}
	n.probeAt = now.Add(next)
	return next, nil
}

// probeWorkersThroughPool is probeWorkers without a LISTEN connection, so that workers that cannot listen reap as well.
func (n *Notifier) probeWorkersThroughPool(ctx context.Context) {
	now := time.Now()
	if now.Before(n.probeAt) {
		return
	}
	n.probeAt = now.Add(pgtx.ProbeInterval)
	_ = pgtx.InTx(ctx, n.config.Pool, pgtx.WorkerRole, func(tx pgx.Tx) error {
		due, err := coredb.New(tx).ProbeWorkers(ctx, n.probe(pgtx.OutageGrace))
		if err == nil {
			n.config.Reaper.Expect(due, pgtx.OutageGrace)
		}
		return err
	})
}

func (n *Notifier) probe(grace time.Duration) coredb.ProbeWorkersParams {
	return coredb.ProbeWorkersParams{Worker: n.config.Journal.Worker, GraceSeconds: grace.Seconds()}
}
