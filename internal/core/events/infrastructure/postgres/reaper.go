package postgres

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// reapGrace is how long a worker must be without its session before what it held is reaped: one that only lost its
	// connection has it back by then.
	reapGrace = 2 * time.Second
	// outageGrace is the grace after this process lost a connection itself: others may have lost theirs with it, and take
	// longer to come back.
	outageGrace = maxBackoff + 5*time.Second
	// probeEvery is how often a process finds out which others are gone.
	probeEvery = 5 * time.Second
	// minProbe bounds how often very short leases are asked about.
	minProbe = 200 * time.Millisecond
	// reapPage is how many rows one transaction reaps: each is a subtransaction, of which more than 64 cost every session.
	reapPage = 50
	// reapPause lies between two passes, reapRest after one that reaped nothing: what is left is locked or cannot be written.
	reapPause = time.Second
	reapRest  = probeEvery
	// maxReapLines is how many rows of a pass are logged.
	maxReapLines = 20
	// maxTold is how many unwritable rows are remembered as logged.
	maxTold = 100_000
)

// probeWorkers finds out which workers are gone, has the reaper run if something is due, and says when to ask again. Called
// after a look.
func (b *doorbell) probeWorkers(ctx context.Context, l *line) (time.Duration, error) {
	now := time.Now()
	if now.Before(b.probeAt) {
		return b.probeAt.Sub(now), nil
	}
	grace := reapGrace
	if now.Before(b.journal.outageOver) {
		grace = outageGrace
	}
	var due float64
	err := l.ask(ctx, "find out which workers are gone", func(ctx context.Context) (err error) {
		due, err = l.queries.ProbeWorkers(ctx, coredb.ProbeWorkersParams{Worker: b.journal.worker, GraceSeconds: grace.Seconds()})
		return err
	})
	next := probeEvery
	if pg, refused := errors.AsType[*pgconn.PgError](err); refused && pg.Code != pgerrcode.ReadOnlySQLTransaction {
		b.config.Log.WarnContext(ctx, "could not find out which workers are gone", logReason, err.Error())
	} else if err != nil {
		return 0, err
	} else {
		next = b.reaper.expect(due, grace)
	}
	b.probeAt = now.Add(next)
	return next, nil
}

// probeWorkersThroughPool is probeWorkers without a LISTEN connection: workers that cannot listen reap as well. Called after a poll.
func (b *doorbell) probeWorkersThroughPool(ctx context.Context) {
	now := time.Now()
	if now.Before(b.probeAt) {
		return
	}
	b.probeAt = now.Add(probeEvery)
	_ = inTx(ctx, b.config.Pool, workerRole, func(tx pgx.Tx) error {
		due, err := coredb.New(tx).ProbeWorkers(ctx, coredb.ProbeWorkersParams{Worker: b.journal.worker, GraceSeconds: outageGrace.Seconds()})
		if err == nil {
			b.reaper.expect(due, outageGrace)
		}
		return err
	})
}

// reaper makes pending again what dead workers held, whichever generation they were of. Every process has one; the database
// lets one at a time reap (core.outbox_reap).
type reaper struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	due  chan time.Duration // the grace of dead workers
	told map[uuid.UUID]bool // of these rows it is logged that they cannot be written
}

func newReaper(pool *pgxpool.Pool, log *slog.Logger) *reaper {
	return &reaper{pool: pool, log: log, due: make(chan time.Duration, 1), told: make(map[uuid.UUID]bool)}
}

// expect takes in how many seconds from now something is to be reaped, negative for nothing, and says when to ask again.
func (r *reaper) expect(seconds float64, grace time.Duration) time.Duration {
	switch {
	case seconds < 0:
		return probeEvery
	case seconds == 0:
		select {
		case r.due <- grace:
		default: // it knows
		}
		return reapPause
	default:
		return max(time.Duration(min(seconds, probeEvery.Seconds())*float64(time.Second))+time.Millisecond, minProbe)
	}
}

// run reaps whenever something is due, until ctx is done.
func (r *reaper) run(ctx context.Context) {
	for {
		var grace time.Duration
		select {
		case grace = <-r.due:
		case <-ctx.Done():
			return
		}
		rest := reapPause
		reaped, err := r.pass(ctx, grace)
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "reaping interrupted", logErrorClass, classify(err, 0).class, logReason, err.Error())
		}
		if reaped == 0 {
			rest = reapRest
		}
		pause(ctx, rest, nil)
	}
}

// pass goes once through all rows that are due, and returns how many it reaped.
func (r *reaper) pass(ctx context.Context, grace time.Duration) (reaped int, err error) {
	var after coredb.ReapRow
	var said reapLines
	for {
		var page []coredb.ReapRow
		if err := inTx(ctx, r.pool, workerRole, func(tx pgx.Tx) (err error) {
			page, err = coredb.New(tx).Reap(ctx, coredb.ReapParams{
				RowLimit: reapPage, After: after.EventID, GraceSeconds: grace.Seconds(),
			})
			return err
		}); err != nil {
			return said.reaped, err
		}
		for _, row := range page {
			r.say(ctx, row, &said)
		}
		if len(page) < reapPage {
			break
		}
		after = page[len(page)-1]
	}
	if said.reaped > maxReapLines || said.left > maxReapLines {
		r.log.WarnContext(ctx, "many events were reaped: not all of them are logged", logRows, said.reaped, logLeft, said.left)
	}
	return said.reaped, nil
}

// reapLines counts what a pass has to say: rows that it reaped, and those that it is the first to find unwritable.
type reapLines struct{ reaped, left int }

// say logs one row; one that cannot be written only once.
func (r *reaper) say(ctx context.Context, row coredb.ReapRow, said *reapLines) {
	attributes := []any{logEventID, row.EventID, logEventType, row.EventType, logGeneration, row.Generation,
		logAttempts, row.Attempts, logCrashes, row.Crashes, logReason, row.Reason}
	if row.Reaped {
		delete(r.told, row.EventID)
		said.reaped++
		if row.Failed {
			r.log.ErrorContext(ctx, "event failed: its workers died of it", append(attributes, logSee, showsError(row.EventID))...)
		} else if said.reaped <= maxReapLines {
			r.log.WarnContext(ctx, "a dead worker held it: the event is pending again", attributes...)
		}
		return
	}
	if r.told[row.EventID] {
		return
	}
	if len(r.told) >= maxTold {
		clear(r.told)
	}
	r.told[row.EventID] = true
	if said.left++; said.left <= maxReapLines {
		r.log.ErrorContext(ctx, "a dead worker held it, and its row cannot be written: the event stays as it is", attributes...)
	}
}
