package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// While a producer is between its decision to stay silent and the end of its commit, the
	// doorbell looks again after this long, doubling.
	firstPause = 2 * time.Millisecond
	maxPause   = 50 * time.Millisecond

	// Looks that a ring asks for are at least this far apart, however often it rings.
	pace = 2 * time.Millisecond

	// A look below the floors is followed by none for so many times as long as it took: 2 % of the
	// time at most.
	fullLookShare = 50
)

// doorbell decides when consumers look for work. One goroutine, which alone uses the LISTEN
// connection.
type doorbell struct {
	config     Config
	health     *Health
	journal    *journal
	reaper     *reaper
	consumers  map[string]*consumer // by event type
	eventTypes []string             // and their channels, both in order
	channels   []string
	work       context.Context // of the claims that it wakes
	listens    chan<- struct{} // told whenever it listens once more; never waited for

	fullLookAt time.Time // not before
	probeAt    time.Time // when to find out next which workers are gone

	probe    string // the channel of self-tests, nobody else's
	lookedAt time.Time
	poll     pollBackoff
	said     string         // what was last logged of the health
	held     *line          // what run leaves open when it is stopped
	sending  sync.WaitGroup // notifications of self-tests
}

// run connects and watches until ctx is done, reconnecting with growing, jittered delays. Until
// there is a connection the poll goes on through the pool. It returns early when this worker must
// not work beside another one. Stopped, it leaves its session open: as long as handlers are at work
// the worker is alive.
func (b *doorbell) run(ctx context.Context) error {
	defer b.sending.Wait()
	// the same one for good: what cannot be unsubscribed behind a pooler must not grow
	b.probe = fmt.Sprintf("spectral_test_%08x%08x", rand.Uint32(), rand.Uint32())
	backoff := firstBackoff
	var lostAt time.Time
	for ctx.Err() == nil {
		line, err := b.connect(ctx)
		if err == nil {
			err = b.watch(ctx, line, func() {
				backoff, lostAt = firstBackoff, time.Time{}
				b.say(ctx, Listening, nil, 0)
			})
		}
		if ctx.Err() != nil {
			b.held = line
			return nil
		}
		if lostAt.IsZero() {
			lostAt = time.Now()
		}
		if differ, ok := errors.AsType[*HandlersDifferError](err); ok {
			return differ
		}
		state := Reconnecting
		was, _ := b.health.Now()
		if errors.Is(err, errDeaf) || was == Polling ||
			backoff >= maxBackoff || time.Since(lostAt) >= maxBackoff {
			state = Polling
		}
		b.say(ctx, state, err, jittered(backoff))
		if line != nil {
			line.hangUp()
		}
		wait, done := context.WithTimeout(ctx, jittered(backoff))
		_, err = b.pollUntil(ctx, wait.Done(), b.lookedAt)
		done()
		if err != nil {
			return err
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// say sets the health, and logs it when the state or the kind of reason is another than last time.
func (b *doorbell) say(ctx context.Context, state State, err error, delay time.Duration) {
	if err == nil {
		b.health.set(state, "")
		if news := string(state); b.said != news {
			b.said = news
			b.config.Log.InfoContext(ctx, "listening", logChannels, b.channels)
			select {
			case b.listens <- struct{}{}:
			default:
			}
		}
		return
	}
	reason := reasonOf(err)
	b.health.set(state, reason)
	kind, class := kindOf(err)
	if news := string(state) + " " + kind; b.said != news {
		b.said = news
		b.config.Log.WarnContext(ctx, "no LISTEN connection: events wait for the poll", logState, state,
			logReason, reason, logErrorClass, class, logDelay, delay.Milliseconds())
	}
}

// pollBackoff is when the poll through the pool is due.
type pollBackoff struct {
	at    time.Time     // not before
	delay time.Duration // after the next failure; zero while there is none
}

// pollUntil looks through the pool whenever the poll, or a scheduled row that it saw, is due,
// counted from the look at since, until end or until the database is back. After failures it looks
// less often: the database may be down. Its error is that this worker must not work beside another
// one.
func (b *doorbell) pollUntil(ctx context.Context, end <-chan struct{}, since time.Time) (back bool, err error) {
	next := b.config.PollInterval - time.Since(since)
	for {
		poll := time.NewTimer(max(next, time.Until(b.poll.at), 0))
		select {
		case <-end:
			poll.Stop()
			return false, nil
		case <-ctx.Done():
			poll.Stop()
			return false, nil
		case <-poll.C:
		}
		failing := b.poll.delay > 0
		if next, err = b.lookThroughPool(ctx); err != nil {
			return false, err
		}
		if failing && b.poll.delay == 0 {
			return true, nil
		}
	}
}

// lookThroughPool is the poll without a LISTEN connection, and returns how long until the next. Who
// has not enrolled yet, or has lost the session it did with, looks first whether it may work.
// Other errors are not reported: health already says that the database is out of reach.
func (b *doorbell) lookThroughPool(ctx context.Context) (time.Duration, error) {
	b.lookedAt = time.Now()
	next := b.config.PollInterval
	err := inTx(ctx, b.config.Pool, workerRole, func(tx pgx.Tx) error {
		queries := coredb.New(tx)
		if err := b.journal.differs(ctx, queries); err != nil {
			return err
		}
		seen, err := b.look(ctx, queries)
		if err == nil {
			next = seen.next
		}
		return err
	})
	if differ, ok := errors.AsType[*HandlersDifferError](err); ok {
		return 0, differ
	}
	if err != nil {
		b.poll.delay = min(max(2*b.poll.delay, firstBackoff), maxBackoff)
		b.poll.at = time.Now().Add(jittered(b.poll.delay))
	} else {
		b.poll = pollBackoff{}
		b.probeWorkersThroughPool(ctx)
	}
	return next, nil
}

// watch is the doorbell proper; docs/decisions/0003 argues why nothing is stranded. Consumers at
// work make no difference to it. Connected is called once the first look was answered.
func (b *doorbell) watch(ctx context.Context, l *line, connected func()) error {
	rang := true // or may have, before we listened
	for first := true; ; first = false {
		seen, err := b.lookOn(ctx, l)
		if err != nil {
			return err
		}
		if first {
			connected()
		}
		// a poll or a timer that finds something may have been silent ones' only ring
		if rang || seen.due {
			if seen, err = b.lookUntilQuiet(ctx, l); err != nil {
				return err
			}
		}
		if rang, err = b.awaitDue(ctx, l, min(seen.next, b.config.PollInterval-b.sinceLook())); err != nil {
			return err
		}
		if rang {
			pause(ctx, pace-b.sinceLook(), nil)
		}
	}
}

// lookUntilQuiet looks until no producer is between its decision to stay silent and the end of
// its commit, and then once more: whoever was silent is visible to that look, and whoever comes
// after it rings.
func (b *doorbell) lookUntilQuiet(ctx context.Context, l *line) (seen, error) {
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		quiet, err := l.quiet(ctx)
		if err != nil {
			return seen{}, err
		}
		if !quiet {
			// a ring that comes meanwhile is followed up as well: there are looks to come
			rang, err := l.await(ctx, wait)
			if err == nil && rang {
				pause(ctx, pace-b.sinceLook(), nil)
			}
			if err == nil {
				_, err = b.probeWorkers(ctx, l) // it may take long
			}
			if err != nil {
				return seen{}, err
			}
		}
		found, err := b.lookOn(ctx, l)
		if quiet || err != nil {
			return found, err
		}
	}
}

// seen is what a look found.
type seen struct {
	due  bool
	next time.Duration // until the next row that is not due yet
}

// lookOn looks on the LISTEN connection, where it is a ping as well.
func (b *doorbell) lookOn(ctx context.Context, l *line) (found seen, err error) {
	err = l.ask(ctx, "look for due events", func(ctx context.Context) error {
		found, err = b.look(ctx, l.queries)
		return err
	})
	return found, err
}

// look finds the types that have due work and wakes their consumers. Once in a poll interval, and
// less often if that is slow, it looks below the consumers' floors as well.
func (b *doorbell) look(ctx context.Context, queries *coredb.Queries) (seen, error) {
	started := time.Now()
	b.lookedAt = started
	full := !started.Before(b.fullLookAt)
	floors := make([]time.Time, len(b.eventTypes))
	if !full {
		for i, eventType := range b.eventTypes {
			floors[i] = b.consumers[eventType].floor.get()
		}
	}
	rows, err := queries.Look(ctx, coredb.LookParams{Generation: int64(b.config.Generation), EventTypes: b.eventTypes, Floors: floors})
	if full {
		b.fullLookAt = started.Add(max(b.config.PollInterval, fullLookShare*time.Since(started)))
	}
	if err != nil {
		return seen{}, err
	}
	found := seen{next: b.config.PollInterval}
	for _, row := range rows {
		if !row.OldestDue.IsZero() {
			found.due = true
			c := b.consumers[row.EventType]
			if full {
				c.floor.lower(row.OldestDue)
			}
			c.mode.wake(b.work, row.Crashed)
		}
		if row.NextIn >= 0 {
			// a millisecond late rather than early: looking early finds nothing
			seconds := min(row.NextIn, b.config.PollInterval.Seconds()) // no year is too far ahead
			found.next = min(found.next, time.Duration(seconds*float64(time.Second))+time.Millisecond)
		}
	}
	return found, nil
}

// awaitDue waits for a notification or the end of d, and finds out which workers are gone until then.
func (b *doorbell) awaitDue(ctx context.Context, l *line, d time.Duration) (rang bool, err error) {
	end := time.Now().Add(d)
	for {
		next, err := b.probeWorkers(ctx, l)
		if err != nil {
			return false, err
		}
		left := time.Until(end)
		if rang, err := l.idle(ctx, min(left, next)); rang || err != nil || left <= next {
			return rang, err
		}
	}
}

func (b *doorbell) sinceLook() time.Duration { return time.Since(b.lookedAt) }
