package maintenance

import (
	"context"
	"log/slog"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// SampleLatency returns the duty to sample how long events wait until they are delivered: the figures by which to
// decide on another relay (docs/decisions/0006). The first worker of a minute samples for all.
func SampleLatency(log *slog.Logger) func(context.Context, *coredb.Queries) error {
	failed := false // last time, which is logged
	return func(ctx context.Context, queries *coredb.Queries) error {
		_, err := queries.SampleLatency(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			log.WarnContext(ctx, "delivery latency was not sampled; it is tried again every minute", pgtx.LogError(err)...)
		}
		failed = err != nil
		return err
	}
}
