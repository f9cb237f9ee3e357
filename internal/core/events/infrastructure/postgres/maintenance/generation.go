package maintenance

import (
	"context"
	"log/slog"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// WatchGeneration returns the duty to log when the worker's generation is drained or retired, so that the worker can be
// stopped.
func WatchGeneration(g events.Generation, log *slog.Logger) func(context.Context, *coredb.Queries) error {
	logged := "" // the state that was logged last
	return func(ctx context.Context, queries *coredb.Queries) error {
		state, err := queries.GenerationState(ctx, int64(g))
		if err != nil || state == logged {
			return err
		}
		logged = state
		switch state {
		case "retired":
			log.WarnContext(ctx, "this worker's generation is retired: the worker has nothing left to do; stop it")
		case "drained":
			log.InfoContext(ctx, "this worker's generation is drained: nothing is left to do; stop the producers that still "+
				"publish into it, then the worker")
		}
		return nil
	}
}
