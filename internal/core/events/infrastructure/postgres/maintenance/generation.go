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
	pool       *pgxpool.Pool
	health     *notify.Health
	log        *slog.Logger
	generation events.Generation
	asked      chan struct{}
}

// NewGenerationWatch returns the watch of a generation.
func NewGenerationWatch(pool *pgxpool.Pool, health *notify.Health, log *slog.Logger,
	generation events.Generation) *GenerationWatch {
	return &GenerationWatch{pool: pool, health: health, log: log, generation: generation, asked: make(chan struct{}, 1)}
}

// Check has the state checked soon. It does not block.
func (w *GenerationWatch) Check() {
	select {
	case w.asked <- struct{}{}:
	default:
	}
}

// Run checks every minute, and when asked to, until ctx is done.
func (w *GenerationWatch) Run(ctx context.Context) {
	logged := "" // the state that was logged last
	everyMinute(ctx, w.health, w.asked, func() {
		var state string
		err := pgtx.InTx(ctx, w.pool, pgtx.WorkerRole, func(tx pgx.Tx) (err error) {
			state, err = coredb.New(tx).GenerationState(ctx, int64(w.generation))
			return err
		})
		if err != nil || state == logged { // the health reports that the database cannot be reached
			return
		}
		logged = state
		switch state {
		case "retired":
			w.log.WarnContext(ctx, "this worker's generation is retired, and the worker has nothing to do any more: stop it")
		case "drained":
			w.log.InfoContext(ctx, "this worker's generation is drained, and has nothing left: stop the worker once the "+
				"generation's producers are stopped")
		}
	})
}
