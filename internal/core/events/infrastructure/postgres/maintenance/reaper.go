package maintenance

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

const (
	// reapPage is how many rows one transaction reaps: each is a subtransaction, and more than 64 slow down every session.
	reapPage = 50
	// maxReapLines is how many rows of a pass are logged.
	maxReapLines = 20
	// maxLogged is how many unwritable rows are remembered as logged.
	maxLogged = 100_000
)

// Reaper makes pending again what dead workers held, and leases that ran out, of any generation. Every worker has one;
// the database lets one at a time reap (core.outbox_reap).
type Reaper struct {
	pool       *pgxpool.Pool
	log        *slog.Logger
	due        chan time.Duration // the grace of dead workers
	unwritable map[uuid.UUID]bool // rows of which it is logged that they cannot be written
}

// NewReaper returns a reaper that has nothing to do until Expect.
func NewReaper(pool *pgxpool.Pool, log *slog.Logger) *Reaper {
	return &Reaper{pool: pool, log: log, due: make(chan time.Duration, 1), unwritable: make(map[uuid.UUID]bool)}
}

// Expect implements notify.Reaper: seconds from now something is to be reaped, negative for nothing.
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
	var after coredb.ReapRow
	var logged reapCounts
	for {
		var page []coredb.ReapRow
		if err := pgtx.InTx(ctx, r.pool, pgtx.WorkerRole, func(tx pgx.Tx) (err error) {
			page, err = coredb.New(tx).Reap(ctx, coredb.ReapParams{
				RowLimit: reapPage, After: after.EventID, GraceSeconds: grace.Seconds(),
			})
			return err
		}); err != nil {
			return logged.reaped, err
		}
		for _, row := range page {
			r.logRow(ctx, row, &logged)
		}
		if len(page) < reapPage {
			break
		}
		after = page[len(page)-1]
	}
	if logged.reaped > maxReapLines || logged.left > maxReapLines {
		r.log.WarnContext(ctx, "many events were reaped: not all of them are logged",
			pgtx.LogRows, logged.reaped, pgtx.LogLeft, logged.left)
	}
	return logged.reaped, nil
}

// reapCounts counts the rows that a pass reaped, and those that it is the first to find unwritable.
type reapCounts struct{ reaped, left int }

// logRow logs one row; one that cannot be written only once.
func (r *Reaper) logRow(ctx context.Context, row coredb.ReapRow, logged *reapCounts) {
	attributes := []any{pgtx.LogEventID, row.EventID, pgtx.LogEventType, row.EventType, pgtx.LogGeneration, row.Generation,
		pgtx.LogAttempts, row.Attempts, pgtx.LogCrashes, row.Crashes, pgtx.LogReason, row.Reason}
	if row.Reaped {
		delete(r.unwritable, row.EventID)
		logged.reaped++
		if row.Failed {
			r.log.ErrorContext(ctx, "event failed: its workers crashed",
				append(attributes, pgtx.LogSee, pgtx.ShowCommand(row.EventID))...)
		} else if logged.reaped <= maxReapLines {
			r.log.WarnContext(ctx, "a dead worker held it: the event is pending again", attributes...)
		}
		return
	}
	if r.unwritable[row.EventID] {
		return
	}
	if len(r.unwritable) >= maxLogged {
		clear(r.unwritable)
	}
	r.unwritable[row.EventID] = true
	if logged.left++; logged.left <= maxReapLines {
		r.log.ErrorContext(ctx, "a dead worker held it, and its row cannot be written: the event stays as it is",
			attributes...)
	}
}
