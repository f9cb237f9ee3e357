package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/internal/core/telemetry"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { pgtest.MainWith(m, addFixtures) }

// addFixtures registers the test events and creates the tables that handlers write to.
func addFixtures(ctx context.Context, url string) error {
	contracts, err := pgtest.Contracts(testContracts()...)
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
	_, err = pool.Exec(ctx, `
		create table platform.effects (handler text, key text, event_id uuid, n int);
		create table worlds.effects (like platform.effects);
		create table platform.contended (n int primary key);
		create table platform.numbers (n int unique deferrable initially deferred);
		create table platform.acted (n int, role text, workspace text);
		create table platform.hot (id int primary key, n int not null);
		create table platform.card_titles (workspace_id uuid, card_id text, version bigint, title text,
			unique nulls not distinct (workspace_id, card_id));
		create table platform.parents (id int primary key);
		create table platform.children (parent int references platform.parents);
		create table platform.owned (workspace_id uuid, n int);
		alter table platform.owned enable row level security;
		create policy own on platform.owned
			using (workspace_id = nullif(current_setting('spectral.workspace_id', true), '')::uuid);
		create table public.observed (n int, what text);
		create table public.effects (like platform.effects);
		-- goes on for 300 ms after it was cancelled
		create function platform.linger() returns void language plpgsql as 'begin perform pg_catalog.pg_sleep(3602);
			exception when query_canceled then perform pg_catalog.pg_sleep(0.3); end';
		create function platform.die() returns void language sql security definer
			as 'select pg_terminate_backend(pg_backend_pid())';
		grant usage on schema public to public;
		grant all on public.observed, public.effects to public;
		grant all on platform.effects, platform.contended, platform.numbers, platform.acted, platform.hot,
			platform.parents, platform.children, platform.owned, platform.card_titles to spectral_platform;
		grant execute on function platform.linger(), platform.die() to spectral_platform;
		grant all on worlds.effects to spectral_worlds`)
	return err
}

const testTimeout = 30 * time.Second

// noPoll is a poll interval that is longer than any test: the worker relies on notifications.
const noPoll = time.Hour

const happenedType, otherType = "worlds.test.happened", "worlds.test.other"

func ofType(eventType string, e events.Envelope) events.Envelope {
	e.EventType = eventType
	return e
}

type happened struct {
	N int `json:"n"`
}

// testContracts returns the contracts of the test events: two of the default class, and two of the class slow.
func testContracts() []events.Contract {
	other := happenedContract()
	other.Type = otherType
	slow, rowLocked := happenedContract(), happenedContract()
	slow.Type, slow.Class, rowLocked.Type, rowLocked.Class = slowType, "slow", rowLockedSlowType, "slow"
	return []events.Contract{happenedContract(), other, slow, rowLocked}
}

func happenedContract() events.Contract {
	return events.Contract{
		Type: happenedType, Version: 1, Source: events.Worlds, Payload: happened{}, ContentClass: events.Operational,
	}
}

// bundle is a test's database, with what publishes events and starts workers on it.
type bundle struct {
	*testing.T
	ctx        context.Context
	url        string
	pool       *pgxpool.Pool // as the superuser
	contracts  *events.Contracts
	publishing publish.Publishing
	uow        *publish.UnitOfWork

	// These configure the workers.
	generation         events.Generation
	pools              map[string]*pgxpool.Pool // by URL
	owner              *testing.T               // closes the pools
	directURL, poolURL string                   // url unless the test sets another
	log                slog.Handler
	telemetry          *telemetry.Telemetry // nil: nothing is recorded
	sockets            *sockets             // of the pools; nil unless the test causes connection faults
	broker             *broker              // that events go through; nil: see pgtest.Relay
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return setupSerial(t)
}

// setupSerial is setup for a test that must not run beside others of the package.
func setupSerial(t *testing.T) *bundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
	t.Cleanup(cancel)
	contracts, err := pgtest.Contracts(testContracts()...)
	must(t, err)
	b := &bundle{T: t, ctx: ctx, url: pgtest.New(t), contracts: contracts, owner: t, pools: make(map[string]*pgxpool.Pool),
		generation: pgtest.Generation}
	b.directURL, b.poolURL = b.url, b.url
	b.log = slog.NewTextHandler(b.Output(), &slog.HandlerOptions{Level: slog.LevelError + 1})
	b.pool = pgtest.Pool(t, b.url)
	b.publishing = publish.Publishing{
		Contracts: contracts, Generation: pgtest.Generation, Log: slog.New(slog.DiscardHandler),
	}
	b.uow = &publish.UnitOfWork{Pool: b.pool, Publishing: b.publishing}
	return b
}

// run runs a subtest on b's database, with its own deadline.
func (b *bundle) run(name string, do func(*bundle)) {
	b.Helper()
	b.Run(name, func(t *testing.T) {
		shared := *b
		shared.T = t
		ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
		t.Cleanup(cancel)
		shared.ctx = ctx
		do(&shared)
	})
}

// cases runs subtests one after the other on b's database, with the tables emptied before each.
func (b *bundle) cases(all ...func(*bundle)) {
	b.Helper()
	for _, test := range all {
		b.run(nameOf(test), func(b *bundle) {
			b.exec(`alter table core.outbox enable trigger outbox_notify; truncate core.outbox, core.event_handled,
				core.workers, core.claim_journal, core.quarantined_events, core.operator_actions, core.breakers,
				core.failed_attempts, core.error_groups, core.operations, core.operation_rows,
				worlds.world_model_cards, platform.system_cards, worlds.scans,
				worlds.scan_index, worlds.scan_index_findings, platform.effects, worlds.effects,
				platform.contended, platform.numbers, platform.acted, platform.hot, platform.parents, platform.owned,
				public.observed, public.effects cascade`)
			test(b)
		})
	}
}

// nameOf returns the name of a test function of this package.
func nameOf(test any) string {
	name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
	return name[strings.LastIndex(name, ".")+1:]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bundle) exec(sql string, args ...any) {
	b.Helper()
	_, err := b.pool.Exec(b.ctx, sql, args...)
	must(b.T, err)
}

// publishUnchecked removes the payload rules, as if an older build had registered the types.
func (b *bundle) publishUnchecked() {
	b.Helper()
	b.exec("update core.event_types set payload_rules = null, payload_fault = null")
}

func one[T any](b *bundle, sql string, args ...any) (v T) {
	b.Helper()
	must(b.T, b.pool.QueryRow(b.ctx, sql, args...).Scan(&v))
	return v
}

// testWorker is a worker that reports each settlement to the test.
type testWorker struct {
	*bundle
	*worker.Worker
	workers     *pgxpool.Pool // its pool
	settlements chan dispatch.Settlement
	relay       dispatch.Relay
	subscribed  events.Subscription // the first one
}

// cases runs subtests that share the worker, without the events of earlier ones.
func (l *testWorker) cases(all ...func(*bundle, *testWorker)) {
	l.Helper()
	for _, test := range all {
		l.run(nameOf(test), func(b *bundle) {
			b.exec("truncate core.outbox, core.event_handled")
			test(b, l.in(b))
		})
	}
}

// ofRowLocks skips the test where events are relayed: it is about the row lock or the journal of a worker that handles
// an event from Postgres.
func (b *bundle) ofRowLocks() {
	b.Helper()
	if pgtest.Relayed() {
		b.Skip("the events of this test must not be relayed")
	}
}

// in returns l for a subtest that b.run runs.
func (l *testWorker) in(b *bundle) *testWorker {
	shared := *l
	shared.bundle = b
	return &shared
}

// gatedHandler registers a handler that waits at a gate before it writes its effect.
func gatedHandler(name string, g *gate) events.Registration {
	return handler(name, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := g.wait(ctx); err != nil {
			return err
		}
		return writeEffect(name)(ctx, tx, e)
	})
}

// startWorker starts a worker with the consumer s and more, and waits until it listens.
func (b *bundle) startWorker(poll time.Duration, s events.Subscription, more ...events.Subscription) *testWorker {
	b.Helper()
	l := b.newWorker(poll, s)
	for _, other := range more {
		must(b.T, l.Listen(b.ctx, other))
	}
	l.start()
	return l
}

// newWorker creates a worker without starting it. Each function of adjust may change the configuration of its listen
// connection.
func (b *bundle) newWorker(poll time.Duration, s events.Subscription, adjust ...func(*pgx.ConnConfig)) *testWorker {
	b.Helper()
	l := &testWorker{bundle: b, settlements: make(chan dispatch.Settlement, 4096)}
	direct, err := pgtx.DirectConfig(b.directURL)
	must(b.T, err)
	direct.RuntimeParams["application_name"] = "notifier"
	for _, f := range adjust {
		f(direct)
	}
	pool := b.workersPool()
	l.workers, l.relay = pool, b.newRelay()
	l.Worker, err = worker.New(worker.Config{
		Generation: b.generation, Direct: direct, Pool: pool, Contracts: b.contracts,
		Log: slog.New(b.log), Telemetry: b.telemetry, PollInterval: poll, Worker: uuid.New(), Name: b.Name(),
		OnSettled: func(s dispatch.Settlement) { l.settlements <- s }, Relay: l.relay,
	})
	must(b.T, err)
	must(b.T, l.Listen(b.ctx, s))
	l.subscribed = s.WithDefaults()
	return l
}

// workersPool returns the pool that workers dispatch through: one pool for each URL, and one for each worker whose
// connections the test disturbs.
func (b *bundle) workersPool() *pgxpool.Pool {
	b.Helper()
	if pool := b.pools[b.poolURL]; pool != nil && b.sockets == nil {
		return pool
	}
	config, err := pgtx.PoolConfig(b.poolURL, 0, strings.Contains(b.poolURL, "cache_describe"))
	must(b.T, err)
	config.ConnConfig.RuntimeParams["application_name"] = "workers"
	if b.sockets != nil {
		config.ConnConfig.DialFunc = b.sockets.dial
	}
	pool, err := pgxpool.NewWithConfig(b.ctx, config)
	must(b.T, err)
	if b.sockets != nil {
		b.Cleanup(pool.Close)
		return pool
	}
	b.owner.Cleanup(pool.Close)
	b.pools[b.poolURL] = pool
	return pool
}

// conn acquires a superuser's connection for the rest of the test, and then rolls back what is open there.
func (b *bundle) conn() *pgx.Conn {
	b.Helper()
	conn, err := b.pool.Acquire(b.ctx)
	must(b.T, err)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		_, _ = conn.Exec(ctx, "rollback; select pg_advisory_unlock_all()")
		conn.Release()
	})
	return conn.Conn()
}

func (l *testWorker) start() {
	l.Helper()
	must(l.T, l.Start(l.ctx))
	l.Cleanup(func() { l.stop() })
	l.wantState(testTimeout, notify.Listening, "")
	if dispatch.Relays(l.subscribed) {
		pgtest.AwaitRelay(l, l.relay)
	}
}

func (l *testWorker) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
	defer cancel()
	if err := l.Stop(ctx); err != nil {
		l.Errorf("stop the worker: %v", err)
	}
}

func (l *testWorker) nextSettlement() dispatch.Settlement {
	l.Helper()
	select {
	case s := <-l.settlements:
		if pgtest.Relayed() && !one[bool](l.bundle, "select exists (select from core.outbox where id = $1)",
			s.Envelope.EventID) {
			return l.nextSettlement() // a late report of an earlier test's event
		}
		return s
	case <-time.After(testTimeout):
		state, reason := l.Health().Now()
		l.Fatalf("nothing was settled within %s; the notifier is %s %s", testTimeout, state, reason)
		panic("unreachable")
	}
}

// awaitDelivered waits for n settlements, all of which must be deliveries.
func (l *testWorker) awaitDelivered(n int) {
	l.Helper()
	for range n {
		if s := l.nextSettlement(); s.Outcome != dispatch.Delivered {
			l.Fatalf("event %s is %s: %s", s.Envelope.EventID, s.Outcome, s.LastError)
		}
	}
}

// awaitOutcome waits until an event's outcome is the given one, after any number of retries, and returns its
// settlements.
func (l *testWorker) awaitOutcome(outcome dispatch.Outcome) []dispatch.Settlement {
	l.Helper()
	for all := []dispatch.Settlement{}; ; {
		s := l.nextSettlement()
		all = append(all, s)
		if s.Outcome == outcome {
			return all
		}
		if s.Outcome != dispatch.Retried {
			l.Fatalf("event %s is %s, not %s: %s", s.Envelope.EventID, s.Outcome, outcome, s.LastError)
		}
	}
}

func (b *bundle) publish(envelopes ...events.Envelope) {
	b.Helper()
	must(b.T, b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
		return publisherFor().Publish(b.ctx, envelopes...)
	}))
}

// publishMany publishes n events, numbered from 0, in one transaction.
func (b *bundle) publishMany(n int) []events.Envelope {
	b.Helper()
	all := numbered(0, n)
	b.publish(all...)
	return all
}

// numbered returns n events, numbered from first.
func numbered(first, n int) []events.Envelope {
	all := make([]events.Envelope, n)
	for i := range all {
		all[i] = event(first + i)
	}
	return all
}

func event(n int) events.Envelope {
	e, err := events.NewEnvelope(happenedContract(), happened{N: n})
	if err != nil {
		panic(err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		panic(err)
	}
	e.EventID = id
	return e
}

// subscription is a consumer of test events with one runner. The first handler is the primary.
func subscription(handlers ...events.Registration) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(pgtest.Generation, ""), EventType: happenedType,
		Primary: handlers[0], CoHandlers: handlers[1:], Concurrency: 1,
	}
}

// fastRetry retries without a noticeable delay.
var fastRetry = &events.RetryPolicy{MaxRetries: 5, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

// handler registers do under a name, with fast retries.
func handler(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
	return events.Registration{Name: name, Retry: fastRetry, Handler: func(tx events.Tx) events.EventHandler {
		return func(ctx context.Context, e events.Envelope) error { return do(ctx, tx, e) }
	}}
}

// writeEffect is a handler that inserts a row into its context's table effects.
func writeEffect(name string) func(context.Context, events.Tx, events.Envelope) error {
	scope := string(events.Registration{Name: name}.Scope())
	return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		var payload happened
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into "+scope+".effects values ($1, $2, $3, $4)",
			name, e.IdempotencyKey, e.EventID, payload.N)
		return err
	}
}

func effectHandler(name string) events.Registration { return handler(name, writeEffect(name)) }

type row struct {
	Status, LastError string
	Attempts          int
	Failures          map[string]struct {
		Failures int
		Parked   bool
		Class    string
		Error    string
	}
}

func (b *bundle) row(id uuid.UUID) (r row) {
	b.Helper()
	var failures []byte
	must(b.T, b.pool.QueryRow(b.ctx, `select status, coalesce(last_error, ''), attempts, handler_failures
		from core.outbox where id = $1`, id).Scan(&r.Status, &r.LastError, &r.Attempts, &failures))
	must(b.T, json.Unmarshal(failures, &r.Failures))
	return r
}

// awaitRelayed waits for the further dispatch of a relayed event that has two handlers, if one of them has failed
// before the other had handled the event.
func (b *bundle) awaitRelayed(id uuid.UUID) {
	if !pgtest.Relayed() {
		return
	}
	b.eventually("the last dispatch", func() bool {
		return one[bool](b, "select exists (select from core.outbox where id = $1 and (status not in ('pending', 'relayed') "+
			"or available_at > clock_timestamp()))", id)
	})
}

func (b *bundle) wantRow(id uuid.UUID, status string, attempts int) row {
	b.Helper()
	if status != "pending" {
		b.awaitRelayed(id)
	}
	r := b.row(id)
	if r.Status != status || r.Attempts != attempts && (!pgtest.Relayed() || r.Attempts != attempts+1) {
		b.Fatalf("event is %s after %d attempts, want %s after %d; last_error: %s",
			r.Status, r.Attempts, status, attempts, r.LastError)
	}
	return r
}

// wantEffects compares how often each handler wrote its effect, in both contexts.
func (b *bundle) wantEffects(want map[string]int) {
	b.Helper()
	rows, err := b.pool.Query(b.ctx, `select handler, count(*)::int
		from (select handler from platform.effects union all select handler from worlds.effects) e group by handler`)
	must(b.T, err)
	got := make(map[string]int)
	for rows.Next() {
		var name string
		var n int
		must(b.T, rows.Scan(&name, &n))
		got[name] = n
	}
	must(b.T, rows.Err())
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("effects are %v, want %v", got, want)
	}
}

func (b *bundle) handledBy(key string) []string {
	b.Helper()
	return one[[]string](b, `select coalesce(array_agg(handler_name order by handler_name), '{}') from core.event_handled
		where idempotency_key = $1`, key)
}

// gate makes handlers wait until the test releases them.
type gate struct {
	entered chan struct{}
	open    chan struct{}
	once    sync.Once
}

// newGate returns a gate that is released at the end of the test at the latest.
func (b *bundle) newGate() *gate {
	g := &gate{entered: make(chan struct{}, 1000), open: make(chan struct{})}
	b.Cleanup(g.release)
	return g
}

func (g *gate) wait(ctx context.Context) error {
	g.entered <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) awaitAll(t testing.TB, n int) {
	t.Helper()
	for range n {
		g.awaitEntered(t)
	}
}

func (g *gate) awaitEntered(t testing.TB) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(testTimeout):
		t.Fatal("the handler was not called")
	}
}

// eventually polls a condition in the database for which there is no signal.
func (b *bundle) eventually(what string, condition func() bool) {
	b.Helper()
	if !pgtest.Eventually(testTimeout, condition) {
		b.Fatalf("%s did not happen within %s", what, testTimeout)
	}
}

var errOnPurpose = errors.New("failed on purpose")
