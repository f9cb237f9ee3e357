package maintenance

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// reapPage is how many rows one transaction reaps: each is a subtransaction, and more than 64 slow down every session.
const reapPage = 50

// Reaper makes pending again what dead workers held, and leases that ran out, of any generation. Every worker has one;
// the database lets one at a time reap (core.outbox_reap).
type Reaper struct {
	pool      *pgxpool.Pool
	log       *slog.Logger
	telemetry *telemetry.Telemetry
	health    *notify.Health
	due       chan time.Duration // the grace of dead workers
}

// NewReaper returns a reaper that has nothing to do until Expect.
func NewReaper(pool *pgxpool.Pool, log *slog.Logger, t *telemetry.Telemetry, health *notify.Health) *Reaper {
	return &Reaper{pool: pool, log: log, telemetry: t, health: health, due: make(chan time.Duration, 1)}
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
		page, err := r.page(ctx, after, grace)
		if err != nil {
			return reaped, err
		}
		for _, row := range page {
			r.report(ctx, row)
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

func (r *Reaper) page(ctx context.Context, after uuid.UUID, grace time.Duration) (page []coredb.ReapRow, err error) {
	defer r.health.Step("reaper")()
	err = pgtx.InTx(ctx, r.pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
		page, err = coredb.New(tx).Reap(ctx, coredb.ReapParams{
			RowLimit: reapPage, After: after, GraceSeconds: grace.Seconds(),
		})
		return err
	})
	return page, err
}

// report logs and counts one row.
func (r *Reaper) report(ctx context.Context, row coredb.ReapRow) {
	if row.Reaped || row.Failed {
		r.telemetry.Reaped(ctx, row.EventType, row.Failed)
	}
	if class := failureClass(row.Reason); row.Failed || class == "quarantined" {
		if !row.Reaped {
			class = "RowFault"
		}
		r.telemetry.Failed(ctx, telemetry.FailedEvent{
			EventID: row.EventID, EventType: row.EventType, Source: events.Scope(row.Source), Target: events.Scope(row.Target),
			Classes: map[string]string{"outbox": class}, Attempts: int(row.Attempts),
		})
	}
	log := r.log.With(pgtx.LogEventID, row.EventID, pgtx.LogEventType, row.EventType, pgtx.LogGeneration, row.Generation,
		pgtx.LogAttempts, row.Attempts, pgtx.LogCrashes, row.Crashes)
	if row.Reaped {
		log = log.With(pgtx.LogReason, row.Reason)
	} else { // the rest is the text of an error, which may quote the row
		log = log.With(pgtx.LogErrorClass, failureClass(row.Reason))
	}
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

// failureClass returns the first word of a reason, which ends with a colon.
func failureClass(reason string) string {
	class, _, _ := strings.Cut(reason, ":")
	return class
}
