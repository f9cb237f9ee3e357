package maintenance

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Operations returns the duty that carries on what operators have begun: replays and discards of many events, whose
// commands may have ended (docs/decisions/0023). One session at a time carries on an operation.
func Operations(pool *pgxpool.Pool, log *slog.Logger, health *notify.Health) *Service {
	return NewService(func(ctx context.Context) {
		for ctx.Err() == nil {
			changed, wait := health.Changed(), pgtx.OperationsInterval
			if answers(health, wait) {
				wait = stepOperation(ctx, pool, log, health)
			}
			pgtx.Pause(ctx, wait, changed)
		}
	})
}

// stepOperation carries on the operation that has waited longest, and returns when to do that again.
func stepOperation(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, health *notify.Health) time.Duration {
	defer health.Step("operations")()
	var steps []coredb.StepOperationRow
	err := pgtx.InTx(ctx, pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
		steps, err = coredb.New(tx).StepOperation(ctx)
		return err
	})
	if err != nil && ctx.Err() == nil {
		log.WarnContext(ctx, "an operation was not carried on; it is tried again", pgtx.LogError(err)...)
	}
	switch {
	case err != nil || len(steps) == 0:
		return pgtx.Jittered(pgtx.OperationsInterval)
	case steps[0].NextIn < 0: // it is paused; another one may go on
		return 0
	default:
		return pgtx.Seconds(steps[0].NextIn)
	}
}
