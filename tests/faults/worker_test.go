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
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/faults/ledger"
)

// workerVariable makes the test binary a worker for test events, with the environment of the real
// one.
const workerVariable = "SPECTRAL_FAULTS_WORKER"

// The values of workerVariable.
const (
	unlimited = "unlimited"
	limited   = "limited" // to balloonLimit bytes of memory
	leasing   = "leasing" // runs errands, see errand_test.go
)

const (
	deedType = "worlds.test.deed"
	doer     = "platform.faults_doer"
	witness  = "worlds.faults_witness"
)

// deed is an event that says what its handler is to do.
type deed struct {
	Key string `json:"key"`
	Do  string `json:"do"`
}

// What a handler may be told to do, after its effect; each is also a prefix of the key.
const (
	doExit    = "exit"    // os.Exit
	doKill    = "kill"    // SIGKILL to itself
	doBalloon = "balloon" // takes memory until the system refuses
	doDawdle  = "dawdle"  // takes its time, and does well
)

func deedContract() events.Contract {
	return events.Contract{Type: deedType, Version: 1, Source: events.Worlds, Payload: deed{}, ContentClass: events.Operational}
}

// testContracts are those of all test events.
func testContracts() (*events.Contracts, error) {
	return events.NewContracts(deedContract(), errandContract())
}

// deeds are test events for a ledger: a key like kill-1 says what is to be done.
func deeds() ledger.Kind {
	return ledger.Kind{
		EventType: deedType, Handlers: []string{doer, witness}, KeyField: "key",
		Payload: func(_ int, key string) any {
			do, _, dashed := strings.Cut(key, "-")
			if !dashed {
				do = ""
			}
			return deed{Key: key, Do: do}
		},
	}
}

// neighbour is the key of an event that misbehaves in no way.
func neighbour(i int) string { return fmt.Sprintf("k%06d", i) }

// quickly retries without a noticeable delay.
var quickly = &events.RetryPolicy{MaxRetries: 5, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

func deedSubscription(g events.Generation) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(g, ""), EventType: deedType,
		Primary:    events.Registration{Name: doer, Retry: quickly, Handler: doing(doer)},
		CoHandlers: []events.Registration{{Name: witness, Retry: quickly, Handler: doing(witness)}},
	}
}

// doing leaves an effect; the doer then does what it is told.
func doing(name string) func(events.Tx) events.EventHandler {
	return func(tx events.Tx) events.EventHandler {
		return func(ctx context.Context, e events.Envelope) error {
			d, err := events.Decode[deed](e)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "insert into faults.effects (handler, key) values ($1, $2)", name, d.Key); err != nil {
				return err
			}
			if d.Do == doDawdle {
				_, err := tx.Exec(ctx, "select pg_catalog.pg_sleep(0.3)")
				return err
			}
			if name == doer {
				misbehave(d.Do)
			}
			return nil
		}
	}
}

func misbehave(do string) {
	switch do {
	case doExit:
		os.Exit(3)
	case doKill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it arrives
	case doBalloon:
		for b := new(balloon); ; {
			b = &balloon{next: b}
		}
	}
}

// balloon is memory that is not given back while anything refers to it.
type balloon struct {
	next *balloon
	_    [64 << 20]byte
}

// balloonLimit is the address space that a test worker may take, where balloons are expected.
const balloonLimit = 4 << 30

// runWorker runs a worker of test events, put together as internal/app does, until SIGTERM.
func runWorker() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func work(ctx context.Context) (err error) {
	if os.Getenv(workerVariable) == limited {
		limit := syscall.Rlimit{Cur: balloonLimit, Max: balloonLimit}
		if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
			return err
		}
	}
	s, err := app.ReadSettings(os.Getenv)
	if err != nil {
		return err
	}
	contracts, err := testContracts()
	if err != nil {
		return err
	}
	id := uuid.New()
	grace := app.ShutdownGrace
	subscription := deedSubscription(s.Generation)
	if os.Getenv(workerVariable) == leasing {
		run, err := readErrands()
		if err != nil {
			return err
		}
		subscription = run.subscription(s.Generation, id)
		grace = run.Grace
	}
	poolConfig, err := pgtx.PoolConfig(s.PoolURL, worker.Connections(subscription))
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
		Log: app.NewLogger(os.Stderr, slog.LevelInfo, s.Generation), Worker: id, Name: "test worker",
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
