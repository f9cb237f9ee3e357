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
	return Every(pgtx.OperationsInterval, "operations", health, func(ctx context.Context) {
		// a paused operation may still wait for events: it is found again at once, and has no next step
		for over, began := 0, time.Now(); over < pgtx.PausedOperations && time.Since(began) < pgtx.OperationsPass; {
			var steps []coredb.StepOperationRow
			err := pgtx.InTx(ctx, pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
				steps, err = coredb.New(tx).StepOperation(ctx)
				return err
			})
			if err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "an operation was not carried on; it is tried again", pgtx.LogError(err)...)
			}
			if err != nil || len(steps) == 0 {
				return
			}
			if next := steps[0].NextIn; next < 0 {
				over++
			} else {
				pgtx.Pause(ctx, pgtx.Seconds(next), nil)
			}
		}
	})
}
