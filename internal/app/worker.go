package app

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/maintenance"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
	"spectral/internal/core/telemetry"
)

// ShutdownGrace is how long handlers may go on after a worker was told to stop.
const ShutdownGrace = 20 * time.Second

// Worker returns the fx options of a worker process: the pool, publishing, every consumer, and the use case of the
// demo. Its hooks start and stop the worker, the retention sweep included.
func Worker(s Settings, log *slog.Logger) fx.Option {
	return fx.Options(
		fx.WithLogger(func() fxevent.Logger { return fxevent.NopLogger }),
		fx.StopTimeout(ShutdownGrace+10*time.Second), // a forced stop takes 8 s, and the pools 1 s
		fx.Supply(s, log),
		fx.Provide(newProviders, (*providers).gatherer, newFailureReporter, newTelemetry, newHTTPServer),
		fx.Provide(Contracts, newPool, newUnitOfWork, newWorker, NewPublishCard),
		fx.Invoke(func(*worker.Worker, *HTTPServer) {}),
	)
}

// NewWorker returns a worker and its unit of work, for callers that do not use fx. All of it runs from the worker's
// Start to its Stop. If it cannot be built, Start returns the error. Parts are pointers to further parts, which it
// sets as fx.Populate does.
func NewWorker(s Settings, log *slog.Logger, parts ...any) (*fx.App, *publish.UnitOfWork) {
	var unitOfWork *publish.UnitOfWork
	worker := fx.New(Worker(s, log), fx.Populate(append(parts, &unitOfWork)...))
	return worker, unitOfWork
}

// newPool returns the pool of the use cases. The dispatchers have their own, so that handlers that want a second
// connection cannot take theirs.
func newPool(lifecycle fx.Lifecycle, s Settings, p *providers) (*pgxpool.Pool, error) {
	return openPool(lifecycle, s, p, "use cases", 0)
}

// openPool opens a pool that serves so many runners.
func openPool(lifecycle fx.Lifecycle, s Settings, p *providers, name string, runners int) (*pgxpool.Pool, error) {
	// DATABASE_URL may lead through a pooler by mistake; events are delivered until that is corrected
	config, err := pgtx.PoolConfig(s.PoolURL, runners, s.Pooled || s.PoolURL != s.DatabaseURL)
	if err != nil {
		return nil, err
	}
	p.traceStatements(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config) // connects when it is first used
	if err == nil {
		err = p.observePool(pool, name)
	}
	if err != nil {
		return nil, fmt.Errorf("connection pool: %w", err)
	}
	lifecycle.Append(fx.StopHook(func() { pgtx.ClosePool(pool) }))
	return pool, nil
}

func newUnitOfWork(pool *pgxpool.Pool, s Settings, contracts *events.Contracts, log *slog.Logger,
	t *telemetry.Telemetry) *publish.UnitOfWork {
	return &publish.UnitOfWork{Pool: pool, Publishing: publish.Publishing{
		Contracts: contracts, Generation: s.Generation, Log: log, Telemetry: t,
	}}
}

// newWorker returns the worker, whose start registers this build.
func newWorker(lifecycle fx.Lifecycle, s Settings, contracts *events.Contracts, unitOfWork *publish.UnitOfWork,
	log *slog.Logger, p *providers, t *telemetry.Telemetry, server *HTTPServer) (*worker.Worker, error) {
	all, err := subscriptions(s, unitOfWork)
	if err != nil {
		return nil, err
	}
	relay, err := newRelay(lifecycle, s, log)
	if err != nil {
		return nil, err
	}
	pool, err := openPool(lifecycle, s, p, "consumers", runners(all, s.Relay != nil))
	if err != nil {
		return nil, err
	}
	id := newID()
	direct, err := pgtx.DirectConfig(s.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvDatabaseURL, err)
	}
	// the sweep uses the pool of the use cases, so that it does not take a dispatcher's connection
	store := retentionpg.New(unitOfWork.Pool, pgtx.WorkerRole)
	sweeper := &retention.Sweeper{
		Store: store, Steps: RetentionSteps(), Log: log, Random: rand.Float64,
		Swept: func(ctx context.Context, c retention.Count) { t.Swept(ctx, c.Subject, c.Action, c.Rows) },
	}
	w, err := worker.New(worker.Config{
		Generation: s.Generation, Direct: direct, Pool: pool, Contracts: contracts, Log: log.With(logWorkerID, id),
		Telemetry: t, Worker: id, Name: processName(), Relay: relay,
		Maintenance: []*maintenance.Service{maintenance.NewService(sweeper.Run)},
	})
	if err != nil {
		return nil, err
	}
	server.worker = w
	store.Step = func() (end func()) { return w.Health().Step("retention") }
	if err := p.observeWorker(w.Health()); err != nil {
		return nil, err
	}
	for _, subscription := range all {
		if err := w.Listen(context.Background(), subscription); err != nil {
			return nil, err
		}
	}
	lifecycle.Append(fx.Hook{
		OnStart: func(ctx context.Context) error { // nothing can be published in a generation that is not registered
			if err := pgtx.RunAs(ctx, unitOfWork.Pool, pgtx.WorkerRole, func(tx *pgtx.Tx) error {
				return publish.Register(ctx, tx, s.Generation, contracts)
			}); err != nil {
				return err
			}
			return w.Start(ctx)
		},
		OnStop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, ShutdownGrace)
			defer cancel()
			return w.Stop(ctx)
		},
	})
	return w, nil
}

// newRelay returns the relay that s asks for, or nil.
func newRelay(lifecycle fx.Lifecycle, s Settings, log *slog.Logger) (dispatch.Relay, error) {
	if s.Relay == nil {
		return nil, nil //nolint:nilnil // a worker without one
	}
	config := *s.Relay
	config.Generation, config.Name, config.Log = s.Generation, "spectral "+processName(), log
	relay, err := jetstream.New(config)
	if err != nil {
		return nil, settingsError("%w", err)
	}
	lifecycle.Append(fx.StopHook(relay.Close))
	return relay, nil
}

// runners returns how many connections subscriptions use at once.
func runners(subscriptions []events.Subscription, relay bool) (n int) {
	for _, subscription := range subscriptions {
		n += worker.Connections(subscription, relay)
	}
	return n
}

// WorkerConnections returns how many connections a worker of this build may have, with all classes and no relay: one to
// listen, the pool of its consumers and that of its use cases.
func WorkerConnections() (int, error) {
	all, err := subscriptions(Settings{Generation: 1}, nil)
	if err != nil {
		return 0, err
	}
	return 1 + pgtx.PoolConnections(runners(all, false)) + pgtx.PoolConnections(0), nil
}

// processName tells people which process this is.
func processName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%.200s, process %d", host, os.Getpid())
}

// RetentionSteps returns the steps of a sweep: those of core, then those on the tables of the contexts.
func RetentionSteps() []retention.Step {
	return append(retention.Steps(),
		retention.Step{Subject: "agent_task", Action: retention.Deleted, Function: "platform.retention_delete_agent_tasks"},
		retention.Step{Subject: "override_pattern_decision", Action: retention.Deleted,
			Function: "platform.retention_delete_override_pattern_decisions"},
		retention.Step{Subject: "rule_health_decision", Action: retention.Deleted,
			Function: "worlds.retention_delete_rule_health_decisions"})
}
