package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	channels   []string
	eventTypes []string
	wake       func(eventType string) // makes sure that a claim begins after the call
	floor      func(eventType string) *floor
	enroll     func(context.Context, *pgx.Conn) error
	deaths     func(context.Context, *coredb.Queries) (next time.Duration, err error)

	fullLookAt time.Time // not before

	lookedAt time.Time
	rang     bool // a notification has arrived since await last said so
}

// run connects and watches until ctx is done, reconnecting with growing, jittered delays. While
// there is no connection the poll goes on through the pool. It returns early when this worker must
// not work beside another one.
func (b *doorbell) run(ctx context.Context) error {
	backoff := firstBackoff
	var lostAt time.Time
	for ctx.Err() == nil {
		err := b.connectAndWatch(ctx, func() {
			backoff, lostAt = firstBackoff, time.Time{}
			if b.health.set(Listening, "") {
				b.config.Log.InfoContext(ctx, "listening", logChannels, b.channels)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		if differ, ok := errors.AsType[*HandlersDifferError](err); ok {
			return differ
		}
		if lostAt.IsZero() {
			lostAt = b.config.Now()
		}
		state := Reconnecting
		if b.config.Now().Sub(lostAt) >= maxBackoff || backoff >= maxBackoff {
			state = Polling
		}
		delay := time.Duration(float64(backoff) * (0.5 + b.config.Random()/2))
		if b.health.set(state, err.Error()) {
			b.config.Log.WarnContext(ctx, "no LISTEN connection: events wait for the poll", logReason, state,
				logErrorClass, classify(err, 0).class, logDelay, delay.Milliseconds())
		}
		b.pollWithout(ctx, delay)
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// pollWithout waits for d and looks through the pool whenever the poll is due meanwhile.
func (b *doorbell) pollWithout(ctx context.Context, d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	for {
		poll := time.NewTimer(max(b.config.PollInterval-b.sinceLook(), 0))
		select {
		case <-end.C:
			poll.Stop()
			return
		case <-ctx.Done():
			poll.Stop()
			return
		case <-poll.C:
		}
		b.lookThroughPool(ctx)
	}
}

// lookThroughPool is the poll without a LISTEN connection. Its error is not reported: health
// already says that the database is out of reach.
func (b *doorbell) lookThroughPool(ctx context.Context) {
	b.lookedAt = b.config.Now()
	_ = inTx(ctx, b.config.Pool, workerRole, func(tx pgx.Tx) error {
		_, err := b.look(ctx, coredb.New(tx), true)
		return err
	})
}

// connectAndWatch holds one LISTEN connection until it fails. Connected is called once it has
// answered a look.
func (b *doorbell) connectAndWatch(ctx context.Context, connected func()) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	return b.watch(ctx, conn, connected)
}

// connect opens the direct connection and subscribes. LISTEN is committed before the first look:
// in the other order a row committed between the two would be seen by neither.
func (b *doorbell) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	config := b.config.Direct.Copy()
	// only that it rang is kept: what a flood of notifications carries would fill the memory
	config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { b.rang = true }
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to listen: %w", err)
	}
	sql := "set role " + pgx.Identifier{workerRole}.Sanitize()
	for _, channel := range b.channels {
		sql += "; listen " + pgx.Identifier{channel}.Sanitize()
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := b.enroll(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// watch is the doorbell proper; docs/decisions/0003 argues why nothing is stranded. Consumers at
// work make no difference to it.
func (b *doorbell) watch(ctx context.Context, conn *pgx.Conn, connected func()) error {
	queries := coredb.New(conn)
	rang := true // or may have, before we listened
	for {
		polled := !rang
		seen, err := b.look(ctx, queries, polled)
		if err != nil {
			return err
		}
		connected()
		// a poll or a timer that finds something may have been silent ones' only ring
		if rang || seen.due {
			if seen, err = b.lookUntilQuiet(ctx, conn, queries); err != nil {
				return err
			}
		}
		if rang, err = b.awaitDue(ctx, conn, queries, min(seen.next, b.config.PollInterval-b.sinceLook())); err != nil {
			return err
		}
		if rang {
			if err := sleep(ctx, pace-b.sinceLook()); err != nil {
				return err
			}
		}
	}
}

// lookUntilQuiet looks until no producer is between its decision to stay silent and the end of
// its commit, and then once more: whoever was silent is visible to that look, and whoever comes
// after it rings.
func (b *doorbell) lookUntilQuiet(ctx context.Context, conn *pgx.Conn, queries *coredb.Queries) (seen, error) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		quiet, err := b.quiet(ctx, queries)
		if err != nil {
			return seen{}, err
		}
		if !quiet {
			// a ring that comes meanwhile is followed up as well: there are looks to come
			if _, err := b.await(ctx, conn, pause); err != nil {
				return seen{}, err
			}
		}
		found, err := b.look(ctx, queries, false)
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

// look finds the types that have due work and wakes their consumers. It is also the ping of the
// connection. A full one, which a poll asks for, looks below the consumers' floors as well, if the
// last one has not cost too much.
func (b *doorbell) look(ctx context.Context, queries *coredb.Queries, full bool) (seen, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	started := b.config.Now()
	b.lookedAt = started
	full = full && !started.Before(b.fullLookAt)
	floors := make([]time.Time, len(b.eventTypes))
	if !full {
		for i, eventType := range b.eventTypes {
			floors[i] = b.floor(eventType).get()
		}
	}
	rows, err := queries.Look(ctx, coredb.LookParams{Generation: int64(b.config.Generation), EventTypes: b.eventTypes, Floors: floors})
	if full {
		ended := b.config.Now()
		b.fullLookAt = ended.Add(fullLookShare * ended.Sub(started))
	}
	if err != nil {
		return seen{}, fmt.Errorf("look for due events: %w", err)
	}
	found := seen{next: b.config.PollInterval}
	for _, row := range rows {
		if !row.OldestDue.IsZero() {
			found.due = true
			if full {
				b.floor(row.EventType).lower(row.OldestDue)
			}
			b.wake(row.EventType)
		}
		if row.NextIn >= 0 {
			// a millisecond late rather than early: looking early finds nothing
			seconds := min(row.NextIn, b.config.PollInterval.Seconds()) // no year is too far ahead
			found.next = min(found.next, time.Duration(seconds*float64(time.Second))+time.Millisecond)
		}
	}
	return found, nil
}

func (b *doorbell) quiet(ctx context.Context, queries *coredb.Queries) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	quiet, err := queries.Quiet(ctx, b.channels)
	if err != nil {
		return false, fmt.Errorf("ask whether producers are quiet: %w", err)
	}
	return quiet, nil
}

// awaitDue waits for a notification or the end of d, and meanwhile finds out which workers are gone.
func (b *doorbell) awaitDue(ctx context.Context, conn *pgx.Conn, queries *coredb.Queries, d time.Duration) (rang bool, err error) {
	end := b.config.Now().Add(d)
	for {
		next, err := b.deaths(ctx, queries)
		if err != nil {
			return false, err
		}
		left := end.Sub(b.config.Now())
		if rang, err := b.await(ctx, conn, min(left, next)); rang || err != nil || left <= next {
			return rang, err
		}
	}
}

// await waits for a notification or the end of d, and reports whether it rang, now or since the
// last await. All that have arrived count as one ring; what they carry is never trusted.
func (b *doorbell) await(ctx context.Context, conn *pgx.Conn, d time.Duration) (rang bool, err error) {
	defer func() { b.rang = false }()
	if b.rang {
		return true, nil
	}
	wait, cancel := context.WithTimeout(ctx, max(d, 0))
	defer cancel()
	err = conn.PgConn().WaitForNotification(wait)
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case wait.Err() != nil && !conn.IsClosed():
		return b.rang, nil
	default:
		return false, fmt.Errorf("wait for notifications: %w", err)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *doorbell) sinceLook() time.Duration { return b.config.Now().Sub(b.lookedAt) }
