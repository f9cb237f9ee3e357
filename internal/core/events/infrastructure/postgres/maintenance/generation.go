package maintenance

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// GenerationWatch logs when the worker's generation is retired or drained, so that the worker can be stopped.
type GenerationWatch struct {
	Pool       *pgxpool.Pool
	Health     *notify.Health
	Log        *slog.Logger
	Generation events.Generation
}

// Run checks every minute until ctx is done.
func (w *GenerationWatch) Run(ctx context.Context) {
	logged := "" // the state that was logged last
	everyMinute(ctx, w.Health, func() {
		var state string
		err := pgtx.InTx(ctx, w.Pool, pgtx.WorkerRole, func(tx pgx.Tx) (err error) {
			state, err = coredb.New(tx).GenerationState(ctx, int64(w.Generation))
			return err
		})
		if err != nil || state == logged { // the health reports that the database cannot be reached
			return
		}
		logged = state
		switch state {
		case "retired":
			w.Log.WarnContext(ctx, "this worker's generation is retired, and the worker has nothing to do any more: stop it")
		case "drained":
			w.Log.InfoContext(ctx, "this worker's generation is drained, and has nothing left: stop the worker once the "+
				"generation's producers are stopped")
		}
	})
}
