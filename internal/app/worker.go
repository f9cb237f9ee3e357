package app

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
)

// ShutdownGrace is how long handlers may go on after a worker was told to stop.
const ShutdownGrace = 20 * time.Second

// Worker is the fx options of a worker process: the pool, publishing, every consumer, and the use case
// of the demo. Its hooks start and stop the listener, and what sweeps beside it.
func Worker(s Settings, log *slog.Logger) fx.Option {
	return fx.Options(
		fx.WithLogger(func() fxevent.Logger { return fxevent.NopLogger }),
		fx.StopTimeout(ShutdownGrace+10*time.Second), // what is cancelled then is given 8 s, and the pools 1 s
		fx.Supply(s, log),
		fx.Provide(
			Contracts,
			newPool,
			newUnitOfWork,
			newListener,
			NewPublishCard,
		),
		fx.Invoke(startListener, startSweeper),
	)
}

// NewWorker builds a worker for whoever knows no fx: all of it runs from its Start to its Stop. The unit of work is the
// worker's own, for use cases beside it. If the worker cannot be built, Start says why.
func NewWorker(s Settings, log *slog.Logger) (*fx.App, *postgres.UnitOfWork) {
	var unitOfWork *postgres.UnitOfWork
	worker := fx.New(Worker(s, log), fx.Populate(&unitOfWork))
	return worker, unitOfWork
}

// newPool is the pool of the use cases. The listener has one of its own: handlers that want a second
// connection take it here, and cannot keep the dispatchers from theirs.
func newPool(lifecycle fx.Lifecycle, s Settings) (*pgxpool.Pool, error) {
	return openPool(lifecycle, s, 0)
}

// openPool opens a pool that serves so many runners.
func openPool(lifecycle fx.Lifecycle, s Settings, runners int) (*pgxpool.Pool, error) {
	// also of a pooler that DATABASE_URL leads through by mistake, so that events are delivered until that is corrected
	config, err := poolConfig(s.PoolURL, runners, s.Pooled || s.PoolURL != s.DatabaseURL)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config) // connects when first used
	if err != nil {
		return nil, fmt.Errorf("connection pool: %w", err)
	}
	lifecycle.Append(fx.StopHook(func() { postgres.ClosePool(pool) }))
	return pool, nil
}

func newUnitOfWork(pool *pgxpool.Pool, s Settings, contracts *events.Contracts, log *slog.Logger) *postgres.UnitOfWork {
	return &postgres.UnitOfWork{Pool: pool, Publishing: postgres.Publishing{
		Contracts: contracts, Generation: s.Generation, Log: log,
	}}
}

func newListener(lifecycle fx.Lifecycle, s Settings, contracts *events.Contracts, unitOfWork *postgres.UnitOfWork, log *slog.Logger) (*postgres.Listener, error) {
	all, err := subscriptions(s, unitOfWork)
	if err != nil {
		return nil, err
	}
	pool, err := openPool(lifecycle, s, runners(all))
	if err != nil {
		return nil, err
	}
	worker, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	direct, err := postgres.DirectConfig(s.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvDatabaseURL, err)
	}
	listener, err := postgres.NewListener(postgres.Config{
		Generation: s.Generation, Direct: direct, Pool: pool, Contracts: contracts, Log: log.With(logWorkerID, worker),
		Worker: worker, Name: processName(),
	})
	if err != nil {
		return nil, err
	}
	for _, subscription := range all {
		if err := listener.Listen(context.Background(), subscription); err != nil {
			return nil, err
		}
	}
	return listener, nil
}

// runners are how many connections subscriptions use at once.
func runners(subscriptions []events.Subscription) (n int) {
	for _, subscription := range subscriptions {
		n += postgres.Connections(subscription)
	}
	return n
}

// WorkerConnections is how many connections a worker of this build may come to have, all classes included: one to listen, the
// pool of its consumers and that of its use cases.
func WorkerConnections() (int, error) {
	all, err := subscriptions(Settings{Generation: 1}, nil)
	if err != nil {
		return 0, err
	}
	return 1 + postgres.PoolConnections(runners(all)) + postgres.PoolConnections(0), nil
}

// processName tells people which process this is.
func processName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%.200s, process %d", host, os.Getpid())
}

// startListener registers this build, then listens. Registration comes first: until it is done
// nothing of this generation can be published.
func startListener(lifecycle fx.Lifecycle, s Settings, pool *pgxpool.Pool, contracts *events.Contracts, listener *postgres.Listener) {
	lifecycle.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			if err := postgres.ActAs(ctx, pool, workerRole, func(tx pgx.Tx) error {
				return postgres.Register(ctx, tx, s.Generation, contracts)
			}); err != nil {
				return err
			}
			return listener.Start(ctx)
		},
		OnStop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, ShutdownGrace)
			defer cancel()
			return listener.Stop(ctx)
		},
	})
}

// startSweeper takes a connection of the use cases' pool now and then: a sweep must not keep the dispatchers from theirs.
func startSweeper(lifecycle fx.Lifecycle, pool *pgxpool.Pool, log *slog.Logger) {
	sweeper := retention.NewSweeper(retentionpg.New(pool, workerRole), retention.Config{Steps: RetentionSteps(), Log: log, Random: rand.Float64})
	lifecycle.Append(fx.StartStopHook(sweeper.Start, sweeper.Stop))
}

// RetentionSteps are the steps of a sweep: those of core, then those on the tables of the contexts.
func RetentionSteps() []retention.Step {
	return append(retention.Steps(),
		retention.Step{Subject: "agent_task", Action: retention.Deleted, Function: "platform.retention_delete_agent_tasks"},
		retention.Step{
			Subject: "override_pattern_decision", Action: retention.Deleted, Function: "platform.retention_delete_override_pattern_decisions",
		},
		retention.Step{
			Subject: "rule_health_decision", Action: retention.Deleted, Function: "worlds.retention_delete_rule_health_decisions",
		})
}
