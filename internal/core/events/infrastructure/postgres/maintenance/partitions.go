package maintenance

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Partitions returns the duty that makes partitions of core.outbox ahead, if it has any (docs/decisions/0020). There is
// time: what cannot be made for a lock is made an hour later.
func Partitions(pool *pgxpool.Pool, log *slog.Logger, health *notify.Health) *Service {
	return Every(pgtx.PartitionInterval, "partitions", health, func(ctx context.Context) {
		var made []string
		err := pgtx.InTx(ctx, pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
			made, err = coredb.New(tx).MakePartitions(ctx)
			return err
		})
		pg, refused := errors.AsType[*pgconn.PgError](err)
		switch {
		case refused && pg.Code != pgerrcode.LockNotAvailable:
			log.WarnContext(ctx, "partitions of core.outbox were not made; it is tried again every hour", pgtx.LogError(err)...)
		case len(made) > 0:
			log.InfoContext(ctx, "made partitions of core.outbox", pgtx.LogPartitions, made)
		}
	})
}
