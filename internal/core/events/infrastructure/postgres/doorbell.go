package postgres

import (
	"context"
	"fmt"
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
)

// doorbell decides when consumers look for work. One goroutine, which alone uses the LISTEN
// connection; consumers reach it through poke and took.
type doorbell struct {
	config     Config
	health     *Health
	channels   []string
	eventTypes []string
	wake       func(eventType string)
	busy       func() bool // a consumer is at work

	lookedAt time.Time

	mu        sync.Mutex
	poked     bool
	interrupt context.CancelFunc // ends the wait in progress
	taken     bool               // a claim returned rows since the doorbell last asked
}

// poke ends the wait in progress, or the next one.
func (b *doorbell) poke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.poked = true
	if b.interrupt != nil {
		b.interrupt()
	}
}

func (b *doorbell) took() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = true
}

func (b *doorbell) takeTaken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.taken
	b.taken = false
	return taken
}

// run connects and watches until ctx is done, reconnecting with growing, jittered delays. While
// there is no connection the poll goes on through the pool.
func (b *doorbell) run(ctx context.Context) {
	backoff := firstBackoff
	var lostAt time.Time
	for ctx.Err() == nil {
		err := b.connectAndWatch(ctx, func() { backoff, lostAt = firstBackoff, time.Time{} })
		if ctx.Err() != nil {
			return
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
	conn, err := acquire(ctx, b.config.Pool)
	if err != nil {
		return
	}
	defer conn.Release()
	tx, err := beginAs(ctx, conn, workerRole, noWorkspace)
	if err != nil {
		return
	}
	if _, err := b.look(ctx, coredb.New(tx)); err == nil {
		_ = tx.Commit(ctx)
	}
}

// connectAndWatch holds one LISTEN connection until it fails.
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
	connected()
	b.health.set(Listening, "")
	b.config.Log.InfoContext(ctx, "listening", logChannels, b.channels)
	return b.watch(ctx, conn)
}

// connect opens the direct connection and subscribes. LISTEN is committed before the first look:
// in the other order a row committed between the two would be seen by neither.
func (b *doorbell) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, b.config.Direct)
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
	return conn, nil
}

// watch is the doorbell proper; docs/decisions/0003 argues why nothing is stranded.
func (b *doorbell) watch(ctx context.Context, conn *pgx.Conn) error {
	queries := coredb.New(conn)
	// settled: nobody was silent when last asked, and every ring since has been followed up
	settled := false
	pause := firstPause
	for {
		next, err := b.look(ctx, queries)
		if err != nil {
			return err
		}
		// what is scheduled, or the poll, may concern another type than those at work
		until := min(next, b.config.PollInterval)
		rang := false
		for b.busy() && !rang && b.sinceLook() < until {
			if rang, err = b.await(ctx, conn, until-b.sinceLook()); err != nil {
				return err
			}
		}
		busy := b.busy() // before taken: a consumer takes first and is idle then
		taken := b.takeTaken()
		switch {
		case rang || busy:
			settled = false
			if err := sleep(ctx, pace-b.sinceLook()); err != nil {
				return err
			}
		case taken || !settled:
			if settled, err = b.quiet(ctx, queries); err != nil {
				return err
			}
			if settled {
				pause = firstPause
				continue // one more look; only an empty one lets us sleep
			}
			if _, err := b.await(ctx, conn, pause); err != nil {
				return err
			}
			pause = min(2*pause, maxPause)
		default:
			rang, err := b.await(ctx, conn, until-b.sinceLook())
			if err != nil {
				return err
			}
			if rang {
				settled = false
				if err := sleep(ctx, pace-b.sinceLook()); err != nil {
					return err
				}
			}
		}
	}
}

// look finds the types that have due work, wakes their consumers, and returns how long it is
// until the next row that is not due yet. It is also the ping of the connection.
func (b *doorbell) look(ctx context.Context, queries *coredb.Queries) (next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	b.lookedAt = b.config.Now()
	rows, err := queries.Look(ctx, coredb.LookParams{Generation: int64(b.config.Generation), EventTypes: b.eventTypes})
	if err != nil {
		return 0, fmt.Errorf("look for due events: %w", err)
	}
	next = time.Hour
	for _, row := range rows {
		if row.Due {
			b.wake(row.EventType)
		}
		if row.NextIn >= 0 {
			// a millisecond late rather than early: looking early finds nothing
			next = min(next, time.Duration(row.NextIn*float64(time.Second))+time.Millisecond)
		}
	}
	return next, nil
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

// await waits for a notification, a poke or the end of d, and reports whether it rang. All
// notifications that have arrived count as one ring; what they carry is never trusted.
func (b *doorbell) await(ctx context.Context, conn *pgx.Conn, d time.Duration) (rang bool, err error) {
	wait, cancel := context.WithTimeout(ctx, max(d, 0))
	defer cancel()
	b.mu.Lock()
	if b.poked {
		b.poked = false
		b.mu.Unlock()
		return false, nil
	}
	b.interrupt = cancel
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.interrupt, b.poked = nil, false
	}()
	for {
		_, err := conn.WaitForNotification(wait)
		switch {
		case err == nil:
			rang = true
			cancel() // take the rest of what has arrived without waiting for more
		case ctx.Err() != nil:
			return rang, ctx.Err()
		case wait.Err() != nil && !conn.IsClosed():
			return rang, nil
		default:
			return rang, fmt.Errorf("wait for notifications: %w", err)
		}
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
