package maintenance

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// reapPage is how many rows one transaction reaps: each is a subtransaction, and more than 64 slow down every session.
const reapPage = 50

// Reaper makes pending again what dead workers held, and leases that ran out, of any generation. Every worker has one;
// the database lets one at a time reap (core.outbox_reap).
type Reaper struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	due  chan time.Duration // the grace of dead workers
}

// NewReaper returns a reaper that has nothing to do until Expect.
func NewReaper(pool *pgxpool.Pool, log *slog.Logger) *Reaper {
	return &Reaper{pool: pool, log: log, due: make(chan time.Duration, 1)}
}

// Expect says that seconds from now something is to be reaped, negative for nothing. It returns when to ask again.
func (r *Reaper) Expect(seconds float64, grace time.Duration) time.Duration {
	switch {
	case seconds < 0:
		return pgtx.ProbeInterval
	case seconds == 0:
		select {
		case r.due <- grace:
		default: // the reaper knows
		}
		return pgtx.ReapPause
	default:
		return max(pgtx.Seconds(min(seconds, pgtx.ProbeInterval.Seconds()))+pgtx.RoundUp, pgtx.MinProbe)
	}
}

// Run reaps whenever something is due, until ctx is done.
func (r *Reaper) Run(ctx context.Context) {
	for {
		var grace time.Duration
		select {
		case grace = <-r.due:
		case <-ctx.Done():
			return
		}
		rest := pgtx.ReapPause
		reaped, err := r.pass(ctx, grace)
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "reaping interrupted", pgtx.LogError(err)...)
		}
		if reaped == 0 {
			rest = pgtx.ReapRest
		}
		pgtx.Pause(ctx, rest, nil)
	}
}

// pass goes once through all rows that are due, and returns how many it reaped.
func (r *Reaper) pass(ctx context.Context, grace time.Duration) (reaped int, err error) {
	var after uuid.UUID
	for {
		var page []coredb.ReapRow
		if err := pgtx.InTx(ctx, r.pool, pgtx.WorkerRole, func(tx *pgtx.Tx) (err error) {
			page, err = coredb.New(tx).Reap(ctx, coredb.ReapParams{
				RowLimit: reapPage, After: after, GraceSeconds: grace.Seconds(),
			})
			return err
		}); err != nil {
			return reaped, err
		}
		for _, row := range page {
			r.logRow(ctx, row)
			if row.Reaped {
				reaped++
			}
			after = row.EventID
		}
		if len(page) < reapPage {
			return reaped, nil
		}
	}
}

// logRow logs one row.
func (r *Reaper) logRow(ctx context.Context, row coredb.ReapRow) {
	log := r.log.With(pgtx.LogEventID, row.EventID, pgtx.LogEventType, row.EventType, pgtx.LogGeneration, row.Generation,
		pgtx.LogAttempts, row.Attempts, pgtx.LogCrashes, row.Crashes, pgtx.LogReason, row.Reason)
	switch {
	case !row.Reaped && row.Failed:
		log.ErrorContext(ctx, "event failed: its row cannot be made pending again",
			pgtx.LogSee, pgtx.ShowCommand(row.EventID))
	case !row.Reaped:
		log.ErrorContext(ctx, "event of a dead worker could not be made pending again",
			pgtx.LogSee, pgtx.ShowCommand(row.EventID))
	case row.Failed:
		log.ErrorContext(ctx, "event failed: its workers crashed", pgtx.LogSee, pgtx.ShowCommand(row.EventID))
	default:
		log.WarnContext(ctx, "event that its worker lost is pending again")
	}
}
