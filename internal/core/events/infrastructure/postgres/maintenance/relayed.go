package maintenance

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Relayed returns the duty that makes events pending again whose messages the broker has lost, and all that it has when
// it has not worked for several passes (docs/decisions/0021).
func Relayed(pool *pgxpool.Pool, generation events.Generation, consumers map[string]*dispatch.Consumer,
	log *slog.Logger, health *notify.Health) *Service {
	types := slices.Sorted(maps.Keys(consumers))
	down := 0 // passes in which the broker did not work
	return Every(pgtx.RelayedInterval, "relayed", health, func(ctx context.Context) {
		var waiting []coredb.RelayedSinceRow
		err := pgtx.InTx(ctx, pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
			waiting, err = coredb.New(tx).RelayedSince(ctx, coredb.RelayedSinceParams{
				Generation: int64(generation), EventTypes: types,
			})
			return err
		})
		down++
		for _, c := range consumers {
			if c.Relay.Ready() { // they all have the same
				down = 0
			}
		}
		for _, w := range waiting {
			if down > 0 && down < pgtx.RelayDownPasses {
				break
			}
			if err != nil || w.Now.Sub(w.FirstAt) < pgtx.RelayedAfter {
				continue
			}
			var n int
			n, err = consumers[w.EventType].ReturnLost(ctx, w.Now, down > 0)
			if n > 0 {
				log.WarnContext(ctx, "the broker has lost events, or is down: what it had is handled from Postgres",
					pgtx.LogEventType, w.EventType, pgtx.LogRows, n)
			}
		}
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "could not find out what the broker has lost; it is tried again", pgtx.LogError(err)...)
		}
	})
}
