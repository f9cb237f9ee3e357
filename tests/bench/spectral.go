package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/maintenance"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
	"spectral/internal/core/telemetry"
)

const generation = 1

var discard = slog.New(slog.DiscardHandler)

// contract is the event of the benchmark.
var contract = contractOf(0)

const maxTypes = 8

// contractOf returns the n-th of maxTypes contracts, which differ in their types.
func contractOf(n int) events.Contract {
	c := events.Contract{Type: "worlds.bench.happened", Version: 1, Source: events.Worlds, Payload: event{},
		ContentClass: events.Operational}
	if n > 0 {
		c.Type += fmt.Sprint("_", n)
	}
	return c
}

// spectral is this project as internal/app composes it, with the benchmark's consumer instead of the examples.
type spectral struct {
	name     string
	sql      bool                 // publish by SQL functions instead of from Go
	log      *slog.Logger         // nil: none
	measured *telemetry.Telemetry // nil: nothing is measured
	handlers int                  // of each event; zero means one
	types    int                  // of events, each with its own consumer; zero means one
	leased   bool
	months   bool // core.outbox has monthly partitions
	relay    relay
}

func (s spectral) Info() info {
	left := `select exists (select from core.outbox where status = 'pending' and deleted_at is null)
		or exists (select from core.outbox where status = 'in_flight' and deleted_at is null)`
	if s.relay == receiving || s.relay == relaying {
		left += " or exists (select from core.outbox where status = 'relayed' and deleted_at is null)"
	}
	return info{s.name, "spectral", "core.outbox, core.event_handled, core.claim_journal", left}
}

func contracts() (*events.Contracts, error) {
	shipped, err := app.Contracts()
	if err != nil {
		return nil, err
	}
	all := shipped.All()
	for n := range maxTypes {
		all = append(all, contractOf(n))
	}
	return events.NewContracts(all...)
}

func (s spectral) Prepare(ctx context.Context, d *database) error {
	migrator, err := app.NewMigrator(ctx, d.admin, discard)
	if err != nil {
		return err
	}
	defer func() { _ = migrator.Close() }()
	if _, err := migrator.Up(ctx, generation); err != nil {
		return err
	}
	all, err := contracts()
	if err != nil {
		return err
	}
	if err := publish.Register(ctx, d.pool, generation, all); err != nil {
		return err
	}
	if s.months {
		if err := migrator.Partition(ctx, func(app.Partitioning) error { return nil }, func(string, ...any) {}); err != nil {
			return err
		}
	}
	return d.exec(ctx, `grant spectral_worker to bench_worker; grant spectral_worlds to bench_producer`)
}

func (s spectral) Publisher(_ context.Context, _ *database, pool *pgxpool.Pool) (publishFunc, error) {
	if s.sql {
		return func(ctx context.Context, batch []event) error { return publishBySQL(ctx, pool, batch) }, nil
	}
	all, err := contracts()
	if err != nil {
		return nil, err
	}
	uow := publish.UnitOfWork{Pool: pool,
		Publishing: publish.Publishing{Contracts: all, Generation: generation, Log: cmp.Or(s.log, discard)}}
	return func(ctx context.Context, batch []event) error {
		envelopes := make([]events.Envelope, len(batch))
		for i, e := range batch {
			envelope, err := events.NewEnvelope(contract, e)
			if err != nil {
				return err
			}
			envelopes[i] = envelope
		}
		return uow.Do(ctx, contract.Source, pgtx.NoWorkspace, func(_ events.Tx, publisher events.PublisherFor) error {
			return publisher().Publish(ctx, envelopes...)
		})
	}, nil
}

// publishBySQL publishes as a program without our Go code does: one statement, which is its own transaction.
func publishBySQL(ctx context.Context, pool *pgxpool.Pool, batch []event) error {
	if len(batch) == 1 {
		_, err := pool.Exec(ctx, "select core.outbox_publish($1, $2, $3)", contract.Type, string(contract.Source), batch[0])
		return err
	}
	type element struct {
		EventType string `json:"event_type"`
		Source    string `json:"source"`
		Payload   event  `json:"payload"`
	}
	elements := make([]element, len(batch))
	for i, e := range batch {
		elements[i] = element{contract.Type, string(contract.Source), e}
	}
	argument, err := json.Marshal(elements)
	if err == nil {
		_, err = pool.Exec(ctx, "select core.outbox_publish_many($1)", argument)
	}
	return err
}

// fillRows is the source of an INSERT of events, each 10 µs after the one before: an id ordered by time, when the event
// is due, and its payload.
const fillRows = `select (lpad(to_hex((extract(epoch from t) * 1000)::bigint), 12, '0') || '7' ||
		lpad(to_hex(i & 4095), 3, '0') || '8' || lpad(to_hex(i), 15, '0'))::uuid as id, t,
		jsonb_build_object('n', i, 'key', case when $2 < $1 then abs(hashint4(i)::bigint) % $2 else i end)
			|| case when $3::int = 0 then '{}' else jsonb_build_object('padding',
				(select left(string_agg(md5(j::text), ''), $3) from generate_series(0, $3 / 32) j)) end as payload
	from (select i, now() - ($1 - i) * interval '10 us' as t from generate_series(0, $1 - 1) as i) as g`

func (s spectral) Fill(ctx context.Context, d *database, b backlog) error {
	err := fillOutbox(ctx, d, "core.outbox", b, max(s.types, 1))
	if err == nil && s.relay != noRelay {
		err = s.throughBroker(ctx, d)
	}
	return err
}

// fillOutbox adds events of so many types, in turn, to core.outbox or to a copy of it, without triggers.
func fillOutbox(ctx context.Context, d *database, table string, b backlog, types int) error {
	_, err := d.pool.Exec(ctx, "alter table "+table+" disable trigger all")
	if err == nil {
		_, err = d.pool.Exec(ctx, `with r as materialized (`+fillRows+`)
			insert into `+table+` (id, event_type, event_version, occurred_at, source, content_class, channel, generation,
				payload, idempotency_key, status, created_at, available_at)
			select id, 'worlds.bench.happened' || coalesce('_' || nullif((payload ->> 'n')::int % $4, 0), ''), 1, t, 'worlds',
				'operational', 'outbox_gen_1', 1, payload, id::text, 'pending', t, t from r`, append(b.args(), types)...)
	}
	if err == nil {
		_, err = d.pool.Exec(ctx, "alter table "+table+" enable trigger all")
	}
	return err
}

func (s spectral) Work(ctx context.Context, d *database, j job) (func() error, error) {
	var subscriptions []events.Subscription
	connections := 0
	for n := range max(s.types, 1) {
		subscriptions = append(subscriptions, s.subscription(n, j))
		connections += worker.Connections(subscriptions[n], s.relay != noRelay)
	}
	log := cmp.Or(s.log, discard)
	pool, err := openAppPool(ctx, d.worker, pgtx.PoolConnections(connections))
	if err != nil {
		return nil, err
	}
	spare, err := openAppPool(ctx, d.worker, pgtx.PoolConnections(0))
	if err != nil {
		return nil, err
	}
	direct, err := pgtx.DirectConfig(d.worker)
	if err != nil {
		return nil, err
	}
	all, err := contracts()
	if err != nil {
		return nil, err
	}
	sweeper := &retention.Sweeper{
		Store: retentionpg.New(spare, pgtx.WorkerRole), Steps: app.RetentionSteps(), Log: log, Random: rand.Float64}
	config := worker.Config{Generation: generation, Direct: direct, Pool: pool, Contracts: all, Log: log,
		Telemetry: s.measured, Worker: uuid.New(), Name: "bench",
		Maintenance: []*maintenance.Service{maintenance.NewService(sweeper.Run)}}
	if s.relay != noRelay {
		r, err := s.newRelay(d.bench.broker)
		if err != nil {
			return nil, err
		}
		config.Relay = r
	}
	w, err := worker.New(config)
	if err != nil {
		return nil, err
	}
	for _, subscription := range subscriptions {
		if err := w.Listen(ctx, subscription); err != nil {
			return nil, err
		}
	}
	return func() error {
		defer pool.Close()
		defer spare.Close()
		if r, ok := config.Relay.(*benchRelay); ok {
			defer r.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return w.Stop(ctx)
	}, w.Start(ctx)
}

// subscription is to the n-th type. It has the defaults of batch size and concurrency, but for leased work, which has
// 100 executors.
func (s spectral) subscription(n int, j job) events.Subscription {
	sub := events.Subscription{Channel: events.ChannelName(generation, ""), EventType: contractOf(n).Type}
	if s.leased {
		sub.Mode, sub.Concurrency = events.Leased, 100
	}
	name := func(i int) string { return fmt.Sprintf("platform.bench_%d_%d", n, i) }
	sub.Primary = s.registration(name(1), j)
	for i := 2; i <= s.handlers; i++ {
		sub.CoHandlers = append(sub.CoHandlers, s.registration(name(i), job{effect: j.effect}))
	}
	return sub
}

func (s spectral) registration(name string, j job) events.Registration {
	r := events.Registration{Name: name, Reads: event{}}
	if j.effect != noEffect {
		r.EffectKey = "key"
	}
	decode := func(e events.Envelope) (event, error) {
		v, err := events.Decode[event](e)
		if err == nil && j.handle != nil {
			err = j.handle(v)
		}
		return v, err
	}
	switch {
	case s.leased:
		r.Executor = events.ExecutorFunc(func(_ context.Context, e events.Envelope) (events.Completion, error) {
			v, err := decode(e)
			if err != nil || j.effect == noEffect {
				return nil, err
			}
			return func(ctx context.Context, tx events.Tx) error {
				_, err := tx.Exec(ctx, writeEffect, v.Key)
				return err
			}, nil
		})
	case j.effect == perEvent:
		r.Handler = func(tx events.Tx) events.EventHandler {
			return func(ctx context.Context, e events.Envelope) error {
				v, err := decode(e)
				if err == nil {
					_, err = tx.Exec(ctx, writeEffect, v.Key)
				}
				return err
			}
		}
	default:
		r.Batch = func(tx events.Tx) events.BatchHandler { return batchHandler{tx, j.effect, decode} }
	}
	return r
}

// batchHandler writes the effects of a batch by one statement, in the order of the events.
type batchHandler struct {
	tx     events.Tx
	effect effect
	decode func(events.Envelope) (event, error)
}

// HandleBatch implements [events.BatchHandler].
func (h batchHandler) HandleBatch(ctx context.Context, batch []events.Envelope) (err error) {
	all := make([]event, len(batch))
	for i, e := range batch {
		if all[i], err = h.decode(e); err != nil {
			return err
		}
	}
	if h.effect != noEffect {
		keys, counts := effects(all)
		_, err = h.tx.Exec(ctx, writeEffects, keys, counts)
	}
	return err
}
