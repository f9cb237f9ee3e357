package postgres

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// reapPage is how many leases that ran out one transaction ends: each is a subtransaction, of which more
	// than 64 cost every session.
	reapPage = 50
	// reapPause lies between two passes, reapRest after one that came to nothing: what is left is locked by
	// somebody, or cannot be written.
	reapPause = time.Second
	reapRest  = probeEvery
	// minProbe bounds how often very short leases are asked about.
	minProbe = 200 * time.Millisecond
	// maxReapLines is how many rows of a pass are logged.
	maxReapLines = 20
	// maxTold is how many unwritable rows are remembered as logged.
	maxTold = 100_000
)

// reaper re-pends what is in flight under leases that ran out, whichever worker and generation held them. Every
// process has one; who leads is decided anew in each transaction (core.outbox_reap).
type reaper struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	due  chan struct{}
	told map[uuid.UUID]bool // of these rows it is logged that they cannot be written
}

func newReaper(pool *pgxpool.Pool, log *slog.Logger) *reaper {
	return &reaper{pool: pool, log: log, due: make(chan struct{}, 1), told: make(map[uuid.UUID]bool)}
}

// expiry takes in when the first lease runs out, in seconds, negative for none, and says when to ask again.
func (r *reaper) expiry(seconds float64) time.Duration {
	switch {
	case seconds < 0:
		return probeEvery
	case seconds == 0:
		select {
		case r.due <- struct{}{}:
		default: // it knows
		}
		return reapPause
	default:
		return max(time.Duration(min(seconds, probeEvery.Seconds())*float64(time.Second))+time.Millisecond, minProbe)
	}
}

// run reaps whenever leases have run out, until ctx is done.
func (r *reaper) run(ctx context.Context) {
	for {
		select {
		case <-r.due:
		case <-ctx.Done():
			return
		}
		rest := reapPause
		reaped, err := r.pass(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "reaping interrupted", logErrorClass, classify(err, 0).class, logReason, err.Error())
		}
		if reaped == 0 {
			rest = reapRest
		}
		pause(ctx, rest, nil)
	}
}

// pass goes once through all leases that have run out, and returns how many it ended.
func (r *reaper) pass(ctx context.Context) (reaped int, err error) {
	var after coredb.ReapRow
	var said reapLines
	for {
		var page []coredb.ReapRow
		if err := inTx(ctx, r.pool, workerRole, func(tx pgx.Tx) (err error) {
			page, err = coredb.New(tx).Reap(ctx, coredb.ReapParams{
				RowLimit: reapPage, AfterID: after.EventID, AfterOccurredAt: after.OccurredAt,
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
		r.log.WarnContext(ctx, "many leases ran out: not all of them are logged", logRows, said.reaped, logLeft, said.left)
	}
	return said.reaped, nil
}

// reapLines counts what a pass has to say: rows that it reaped, and those that it is the first to find unwritable.
type reapLines struct{ reaped, left int }

// say logs what came of one row; of one that stays as it is only once.
func (r *reaper) say(ctx context.Context, row coredb.ReapRow, said *reapLines) {
	attributes := []any{logEventID, row.EventID, logEventType, row.EventType, logGeneration, row.Generation,
		logAttempts, row.Attempts, logReason, row.Reason}
	if row.Reaped {
		delete(r.told, row.EventID)
		if said.reaped++; said.reaped <= maxReapLines {
			r.log.WarnContext(ctx, "a lease ran out: the event is pending again", attributes...)
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
		r.log.ErrorContext(ctx, "a lease ran out, but its row cannot be written: the event stays in flight", attributes...)
	}
}
