package postgres

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// ackEvery is how often a worker samples how long events wait; the first of all workers measures for all
// (core.ack_measure).
const ackEvery = time.Minute

// ackMeter keeps core.ack_latencies: the figures by which to decide on another relay (seed D15). Beside that it says when this
// worker has become of no use.
type ackMeter struct {
	pool       *pgxpool.Pool
	log        *slog.Logger
	health     *Health
	failed     bool // the last time, and said so
	generation events.Generation
	standing   string        // of the generation, as it was said last
	listens    chan struct{} // once more
}

// run measures every minute, and looks what the generation's workers are still for then and whenever the worker listens anew,
// until ctx is done.
func (m *ackMeter) run(ctx context.Context) {
	for {
		next := time.NewTimer(time.Duration((0.9 + 0.2*rand.Float64()) * float64(ackEvery)))
		for waiting := true; waiting; {
			select {
			case <-next.C:
				waiting = false
			case <-m.listens:
			case <-ctx.Done():
				next.Stop()
				return
			}
			m.stand(ctx)
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

// stand says so when the generation has come to where its workers have nothing to do any more.
func (m *ackMeter) stand(ctx context.Context) {
	if state, _ := m.health.Now(); state != Listening {
		return
	}
	var standing string
	err := inTx(ctx, m.pool, workerRole, func(tx pgx.Tx) (err error) {
		standing, err = coredb.New(tx).GenerationStanding(ctx, int64(m.generation))
		return err
	})
	if err != nil || standing == m.standing { // whoever cannot ask says so elsewhere
		return
	}
	m.standing = standing
	switch standing {
	case "retired":
		m.log.WarnContext(ctx, "this worker's generation is retired: it is of no use any more; stop it")
	case "drained":
		m.log.InfoContext(ctx, "this worker's generation is drained, and has nothing left: it can be stopped once the generation's producers are")
	}
}
