package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/faults/ledger"
)

// workerVariable makes the test binary a worker of test events. Its other variables are those of the real worker.
const workerVariable = "SPECTRAL_FAULTS_WORKER"

// The values of workerVariable.
const (
	unlimited     = "unlimited"
	memoryLimited = "memory limited" // with at most memoryLimit bytes of address space
	leasedJobs    = "leased jobs"    // handles jobs in leased mode, see jobs_test.go
)

const (
	scriptedType   = "worlds.test.scripted"
	primaryHandler = "platform.faults_primary"
	coHandler      = "worlds.faults_co_handler"
)

// What a handler may be told to do after its write. Each is also a prefix of the event's key.
const (
	doExit     = "exit"     // os.Exit
	doKill     = "kill"     // SIGKILL to itself
	doAllocate = "allocate" // allocates memory until the system refuses
	doSleep    = "sleep"    // takes 300 ms and succeeds
)

func testContracts() (*events.Contracts, error) {
	contract := func(eventType, class string) events.Contract {
		return events.Contract{
			Type: eventType, Version: 1, Source: events.Worlds, Payload: job{}, Class: class, ContentClass: events.Operational,
		}
	}
	return events.NewContracts(contract(scriptedType, ""), contract(jobType, jobClass))
}

// kindOf is the ledger's description of test events. A key such as kill-1 says what the primary handler does; takes
// may be nil.
func kindOf(eventType string, takes func(n int) time.Duration, handlers ...string) ledger.Kind {
	return ledger.Kind{
		EventType: eventType, Handlers: handlers, KeyField: "key",
		Payload: func(n int, key string) any {
			j := job{Key: key}
			if do, _, dashed := strings.Cut(key, "-"); dashed {
				j.Do = do
			}
			if takes != nil {
				j.TakesMicros = takes(n).Microseconds()
			}
			return j
		},
	}
}

// plainKey returns the key of an event whose handler just succeeds.
func plainKey(i int) string { return fmt.Sprintf("k%06d", i) }

func plainKeys(first, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = plainKey(first + i)
	}
	return keys
}

// fastRetry retries without a noticeable delay.
var fastRetry = &events.RetryPolicy{MaxRetries: 5, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

func scriptedSubscription(g events.Generation) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(g, ""), EventType: scriptedType,
		Primary:    events.Registration{Name: primaryHandler, Retry: fastRetry, Handler: scriptedHandler(primaryHandler)},
		CoHandlers: []events.Registration{{Name: coHandler, Retry: fastRetry, Handler: scriptedHandler(coHandler)}},
	}
}

// scriptedHandler writes its effect. The primary handler then does what the event says.
func scriptedHandler(name string) func(events.Tx) events.EventHandler {
	return func(tx events.Tx) events.EventHandler {
		return func(ctx context.Context, e events.Envelope) error {
			payload, err := events.Decode[job](e)
			if err != nil {
				return err
			}
			const insert = "insert into faults.effects (handler, key) values ($1, $2)"
			if _, err := tx.Exec(ctx, insert, name, payload.Key); err != nil {
				return err
			}
			if payload.Do == doSleep {
				_, err := tx.Exec(ctx, "select pg_catalog.pg_sleep(0.3)")
				return err
			}
			if name == primaryHandler {
				endProcess(payload.Do)
			}
			return nil
		}
	}
}

func endProcess(do string) {
	switch do {
	case doExit:
		os.Exit(3)
	case doKill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it arrives
	case doAllocate:
		for b := new(memoryBlock); ; {
			b = &memoryBlock{next: b}
		}
	}
}

// memoryBlock keeps all earlier blocks reachable.
type memoryBlock struct {
	next *memoryBlock
	_    [64 << 20]byte
}

// memoryLimit is the address space of a worker that runs events with doAllocate.
const memoryLimit = 4 << 30

// runWorker runs a worker of test events until SIGTERM.
func runWorker() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// work wires a worker as internal/app does, and runs it.
func work(ctx context.Context) (err error) {
	if os.Getenv(workerVariable) == memoryLimited {
		limit := syscall.Rlimit{Cur: memoryLimit, Max: memoryLimit}
		if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
			return err
		}
	}
	s, err := app.ReadSettings(os.Getenv, false, nil)
	if err != nil {
		return err
	}
	contracts, err := testContracts()
	if err != nil {
		return err
	}
	id := uuid.New()
	grace := app.ShutdownGrace
	subscription := scriptedSubscription(s.Generation)
	if os.Getenv(workerVariable) == leasedJobs {
		run, err := readJobConfig()
		if err != nil {
			return err
		}
		subscription = run.subscription(s.Generation, id)
		grace = run.Grace
	}
	log := app.NewLogger(os.Stderr, slog.LevelInfo, s.Generation)
	relay, err := openRelay(s.Generation, log)
	if err != nil {
		return err
	}
	poolConfig, err := pgtx.PoolConfig(s.PoolURL, worker.Connections(subscription, relay != nil), false)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer pgtx.ClosePool(pool)
	if err := publish.Register(ctx, pool, s.Generation, contracts); err != nil {
		return err
	}
	direct, err := pgtx.DirectConfig(s.DatabaseURL)
	if err != nil {
		return err
	}
	listener, err := worker.New(worker.Config{
		Generation: s.Generation, Direct: direct, Pool: pool, Contracts: contracts,
		Log: log, Worker: id, Name: "test worker", Relay: relay,
	})
	if err != nil {
		return err
	}
	if err := listener.Listen(ctx, subscription); err != nil {
		return err
	}
	if err := listener.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-listener.Done():
		return listener.Err()
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return listener.Stop(stopping)
}

// openRelay returns a relay, until the process ends, if the environment names a broker.
func openRelay(g events.Generation, log *slog.Logger) (dispatch.Relay, error) {
	if os.Getenv(app.EnvNatsURL) == "" {
		return nil, nil //nolint:nilnil // a worker without one
	}
	config, err := app.ReadRelay(os.Getenv)
	if err != nil {
		return nil, err
	}
	config.Generation, config.Log = g, log
	return jetstream.New(*config)
}
