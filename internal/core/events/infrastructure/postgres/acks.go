package postgres

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// ackEvery is how often a worker samples how long events wait; the first of all workers measures for all
// (core.ack_measure).
const ackEvery = time.Minute

// ackMeter keeps core.ack_latencies: the figures by which to decide on another relay (seed D15).
type ackMeter struct {
	pool   *pgxpool.Pool
	log    *slog.Logger
	health *Health
	random func() float64
	failed bool // the last time, and said so
}

// run measures every minute, until ctx is done.
func (m *ackMeter) run(ctx context.Context) {
	for {
		pause(ctx, time.Duration((0.9+0.2*m.random())*float64(ackEvery)), nil)
		if ctx.Err() != nil {
			return
		}
		if state, _ := m.health.Now(); state != Listening {
			continue // the database is away, or others see to it
		}
		err := inTx(ctx, m.pool, workerRole, func(tx pgx.Tx) error {
			_, err := coredb.New(tx).MeasureAcks(ctx)
			return err
		})
		if err != nil && ctx.Err() == nil && !m.failed {
			m.log.WarnContext(ctx, "how long events wait is not being measured", logErrorClass, classify(err, 0).class, logReason, err.Error())
		}
		m.failed = err != nil
	}
}
