package maintenance

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// LatencySampler samples every minute how long events wait until they are delivered: the figures by which to decide on
// another relay (docs/decisions/0006). The first worker of a minute samples for all.
type LatencySampler struct {
	Pool   *pgxpool.Pool
	Health *notify.Health
	Log    *slog.Logger
}

// Run samples until ctx is done.
func (s *LatencySampler) Run(ctx context.Context) {
	failed := false // last time, which is logged
	everyMinute(ctx, s.Health, func() {
		err := pgtx.InTx(ctx, s.Pool, pgtx.WorkerRole, func(tx pgx.Tx) error {
			_, err := coredb.New(tx).SampleLatency(ctx)
			return err
		})
		if err != nil && ctx.Err() == nil && !failed {
			s.Log.WarnContext(ctx, "delivery latency was not sampled; it is tried again every minute", pgtx.LogError(err)...)
		}
		failed = err != nil
	})
}
