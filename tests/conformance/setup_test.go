// Package conformance_test tests what package events promises about publishers and listeners. publisher_test.go runs
// on the outbox and on eventstest.Recorder, listener_test.go on a worker.
package conformance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.MainWith(m, func(ctx context.Context, url string) error {
		contracts, err := events.NewContracts(suiteContracts()...)
		if err != nil {
			return err
		}
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return err
		}
		defer pool.Close()
		if err := publish.Register(ctx, pool, pgtest.Generation, contracts); err != nil {
			return err
		}
		_, err = pool.Exec(ctx, `create schema suite; grant usage on schema suite to public;
			create table suite.lines (line text); grant insert on suite.lines to public`)
		return err
	})
}

const testTimeout = 30 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// database is a migrated database with a worker that is not started. The worker handles events only after a
// notification.
type database struct {
	*testing.T
	Worker *worker.Worker
	pool   *pgxpool.Pool
	uow    publish.UnitOfWork
	got    *atomic.Pointer[events.Envelope] // the last event of oneHandler's handler
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	url := pgtest.New(t)
	contracts, err := events.NewContracts(suiteContracts()...)
	must(t, err)
	d := &database{T: t, pool: pgtest.Pool(t, url), got: &atomic.Pointer[events.Envelope]{}}
	d.uow = publish.UnitOfWork{Pool: d.pool, Publishing: publish.Publishing{
		Contracts: contracts, Generation: pgtest.Generation,
	}}
	direct, err := pgtx.DirectConfig(url)
	must(t, err)
	config, err := pgtx.PoolConfig(url, 8, false)
	must(t, err)
	config.ConnConfig.RuntimeParams["application_name"] = "workers"
	workers, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(workers.Close)
	d.Worker, err = worker.New(worker.Config{
		Generation: pgtest.Generation, Direct: direct, Pool: workers, Contracts: contracts,
		PollInterval: time.Hour, Worker: uuid.New(), Name: "suite", Relay: pgtest.Relay(t, url, pgtest.Generation),
	})
	must(t, err)
	return d
}

// run runs a subtest on the database, without events and lines of earlier ones.
func (d *database) run(name string, test func(*database)) {
	d.Run(name, func(t *testing.T) {
		_, err := d.pool.Exec(t.Context(), "delete from core.outbox; delete from core.event_handled; delete from suite.lines")
		must(t, err)
		copied := *d
		copied.T = t
		test(&copied)
	})
}

func (d *database) Transact(ctx context.Context, work func(events.PublisherFor) error) error {
	return d.uow.Do(ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, p events.PublisherFor) error { return work(p) })
}

func (d *database) Publications(ctx context.Context) ([]eventstest.Publication, error) {
	outcomes, err := eventstest.Outcomes(ctx, d.pool)
	publications := make([]eventstest.Publication, len(outcomes))
	for i, o := range outcomes {
		publications[i] = o.Publication
	}
	return publications, err
}

func formatted(outcomes ...eventstest.Outcome) (text string) {
	for _, o := range outcomes {
		text += fmt.Sprintf("  %+v\n", o)
	}
	return text
}

const (
	suiteType      = "worlds.suite.happened"
	otherType      = "worlds.suite.followed"
	unconsumedType = "worlds.suite.unconsumed"
	deprecatedType = "worlds.suite.deprecated"
	platformType   = "platform.suite.happened"
)

type suitePayload struct {
	N    int64           `json:"n"`
	Text string          `json:"text,omitempty"`
	Data json.RawMessage `json:"data,omitempty"`
}

func suiteContracts() []events.Contract {
	example := suitePayload{N: 1, Text: "text", Data: json.RawMessage(`{"any": true}`)}
	contract := func(eventType string, version int, source events.Scope) events.Contract {
		return events.Contract{
			Type: eventType, Version: version, Source: source, Payload: example, ContentClass: events.Operational,
		}
	}
	unconsumed := contract(unconsumedType, 1, events.Worlds)
	unconsumed.Unconsumed = true
	deprecated := contract(deprecatedType, 1, events.Worlds)
	past := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	deprecated.Deprecation = &events.Deprecation{Deadline: past, Successor: suiteType}
	return []events.Contract{
		contract(suiteType, 1, events.Worlds), contract(suiteType, 2, events.Worlds), contract(otherType, 1, events.Worlds),
		unconsumed, deprecated, contract(platformType, 1, events.Platform),
	}
}

func suiteEvent(n int) events.Envelope {
	e, err := events.NewEnvelope(suiteContracts()[0], suitePayload{N: int64(n)})
	if err != nil {
		panic(err) // cannot happen for suitePayload
	}
	return e
}
