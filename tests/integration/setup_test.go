package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { pgtest.MainWith(m, addFixtures) }

// addFixtures registers happenedContract and creates the tables that handlers leave their effects in.
func addFixtures(ctx context.Context, url string) error {
	all, err := pgtest.LastingContracts()
	if err != nil {
		return err
	}
	contracts, err := events.NewContracts(append(all, testContracts()...)...)
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
		create table platform.parents (id int primary key);
		create table platform.children (parent int references platform.parents);
		create table platform.owned (workspace_id uuid, n int);
		alter table platform.owned enable row level security;
		create policy own on platform.owned using (workspace_id = nullif(current_setting('spectral.workspace_id', true), '')::uuid);
		create table public.saw (n int, what text);
		create table public.effects (like platform.effects);
		-- goes on for a moment after it was cancelled
		create function platform.linger() returns void language plpgsql as 'begin perform pg_catalog.pg_sleep(3602);
			exception when query_canceled then perform pg_catalog.pg_sleep(0.3); end';
		create function platform.die() returns void language sql security definer as 'select pg_terminate_backend(pg_backend_pid())';
		grant usage on schema public to public;
		grant all on public.saw, public.effects to public;
		grant all on all tables in schema platform to spectral_platform;
		grant execute on function platform.linger(), platform.die() to spectral_platform;
		grant all on worlds.effects to spectral_worlds`)
	return err
}

// testTimeout fails a test that waits for longer.
const testTimeout = 30 * time.Second

// noPoll is a poll interval that no test lives to see.
const noPoll = time.Hour

// happenedType is an event of the tests.
const happenedType, otherType = "worlds.test.happened", "worlds.test.other"

// ofType is e as an event of another type.
func ofType(eventType string, e events.Envelope) events.Envelope {
	e.EventType = eventType
	return e
}

type happened struct {
	N int `json:"n"`
}

// testContracts are of the tests events: handled quickly, of another type, and of a class for slow ones.
func testContracts() []events.Contract {
	other := happenedContract()
	other.Type = otherType
	slow, sluggish := happenedContract(), happenedContract()
	slow.Type, slow.Class, sluggish.Type, sluggish.Class = slowType, "slow", sluggishType, "slow"
	return []events.Contract{happenedContract(), other, slow, sluggish}
}

func happenedContract() events.Contract {
	return events.Contract{Type: happenedType, Version: 1, Source: events.Worlds, Payload: happened{}, ContentClass: events.Operational}
}

// bundle is a database of the test and what it takes to publish and listen on it.
type bundle struct {
	*testing.T
	ctx        context.Context
	url        string
	pool       *pgxpool.Pool // as the superuser: sees everything
	contracts  *events.Contracts
	publishing publish.Publishing
	uow        *publish.UnitOfWork

	// of the listeners
	pools              map[string]*pgxpool.Pool // by their URL
	owner              *testing.T               // closes them
	directURL, poolURL string                   // url unless the test says otherwise
	log                slog.Handler
	sockets            *sockets // of their pools, if the test wants to disturb them
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return setupAlone(t)
}

// setupAlone is setup for a test that is parallel already, or that no other of the package may run beside.
func setupAlone(t *testing.T) *bundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
	t.Cleanup(cancel)
	contracts, err := events.NewContracts(append(pgtest.Contracts(t), testContracts()...)...)
	must(t, err)
	b := &bundle{T: t, ctx: ctx, url: pgtest.New(t), contracts: contracts, owner: t, pools: make(map[string]*pgxpool.Pool)}
	b.directURL, b.poolURL = b.url, b.url
	b.log = slog.NewTextHandler(b.Output(), &slog.HandlerOptions{Level: slog.LevelError + 1})
	b.pool = pgtest.Pool(t, b.url)
	b.publishing = publish.Publishing{
		Contracts: contracts, Generation: pgtest.Generation, Log: slog.New(slog.DiscardHandler),
	}
	b.uow = &publish.UnitOfWork{Pool: b.pool, Publishing: b.publishing}
	return b
}

// run runs a subtest that shares b's database with the others, one after the other.
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

// cases runs subtests that need nothing in the database, one after the other on the same one, emptied before each.
func (b *bundle) cases(all map[string]func(*bundle)) {
	b.Helper()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.exec(`alter table core.outbox enable trigger outbox_notify; truncate core.outbox, core.event_handled, core.workers,
			core.claim_journal, core.operator_actions, worlds.world_model_cards, platform.system_cards, worlds.scans,
			worlds.scan_index, worlds.scan_index_findings, platform.effects, worlds.effects, platform.contended, platform.numbers, platform.acted, platform.hot,
			platform.parents, platform.owned, public.saw, public.effects cascade`)
		b.run(name, all[name])
	}
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

// publishUnchecked lets payloads of any shape be published, as if an older build had registered their types.
func (b *bundle) publishUnchecked() {
	b.Helper()
	b.exec("update core.event_types set payload_rules = null, payload_fault = null")
}

// one reads a single value.
func one[T any](b *bundle, sql string, args ...any) (v T) {
	b.Helper()
	must(b.T, b.pool.QueryRow(b.ctx, sql, args...).Scan(&v))
	return v
}

// listening is a running listener whose settlements the test awaits.
type listening struct {
	*bundle
	*worker.Worker
	workers     *pgxpool.Pool // its pool
	settlements chan dispatch.Settlement
}

// in is l for a subtest that b.run runs.
func (l *listening) in(b *bundle) *listening {
	shared := *l
	shared.bundle = b
	return &shared
}

// listen starts a listener on s, and returns when it is listening.
func (b *bundle) listen(poll time.Duration, s events.Subscription) *listening {
	b.Helper()
	l := b.newWorker(poll, pgtest.Generation, s)
	l.start()
	return l
}

// newWorker is listen without the start. Each of adjust sees the LISTEN connection's
// configuration first.
func (b *bundle) newWorker(poll time.Duration, generation events.Generation, s events.Subscription, adjust ...func(*pgx.ConnConfig)) *listening {
	b.Helper()
	l := &listening{bundle: b, settlements: make(chan dispatch.Settlement, 4096)}
	direct, err := pgtx.DirectConfig(b.directURL)
	must(b.T, err)
	direct.RuntimeParams["application_name"] = "notifier"
	for _, f := range adjust {
		f(direct)
	}
	pool := b.workersPool()
	l.workers = pool
	l.Worker, err = worker.New(worker.Config{
		Generation: generation, Direct: direct, Pool: pool, Contracts: b.contracts,
		Log: slog.New(b.log), PollInterval: poll, Worker: uuid.New(), Name: b.Name(),
		OnSettled: func(s dispatch.Settlement) { l.settlements <- s },
	})
	must(b.T, err)
	must(b.T, l.Listen(b.ctx, s))
	return l
}

// workersPool is what listeners dispatch through: one pool for all of them, since connections are what costs most, but
// one for each whose connections the test disturbs.
func (b *bundle) workersPool() *pgxpool.Pool {
	b.Helper()
	if pool := b.pools[b.poolURL]; pool != nil && b.sockets == nil {
		return pool
	}
	config, err := pgtx.PoolConfig(b.poolURL, 0)
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

// conn takes a connection of the superuser until the test ends, and then undoes what is not committed there.
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

func (l *listening) start() {
	l.Helper()
	must(l.T, l.Start(l.ctx))
	l.Cleanup(func() { l.stop() })
	ctx, cancel := context.WithTimeout(l.ctx, testTimeout)
	defer cancel()
	must(l.T, l.Health().Await(ctx, notify.Listening))
}

func (l *listening) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := l.Stop(ctx); err != nil {
		l.Errorf("stop the listener: %v", err)
	}
}

// next awaits a settlement.
func (l *listening) next() dispatch.Settlement {
	l.Helper()
	select {
	case s := <-l.settlements:
		return s
	case <-time.After(testTimeout):
		state, reason := l.Health().Now()
		l.Fatalf("nothing was settled within %s; the listener is %s %s", testTimeout, state, reason)
		panic("unreachable")
	}
}

// delivered awaits n settlements, all of them deliveries.
func (l *listening) delivered(n int) {
	l.Helper()
	for range n {
		if s := l.next(); s.Outcome != dispatch.Delivered {
			l.Fatalf("event %s is %s: %s", s.Envelope.EventID, s.Outcome, s.LastError)
		}
	}
}

// until awaits the event's last settlement, and returns all of them.
func (l *listening) until(outcome dispatch.Outcome) []dispatch.Settlement {
	l.Helper()
	for all := []dispatch.Settlement{}; ; {
		s := l.next()
		all = append(all, s)
		if s.Outcome == outcome {
			return all
		}
		if s.Outcome != dispatch.Retried {
			l.Fatalf("event %s is %s, not %s: %s", s.Envelope.EventID, s.Outcome, outcome, s.LastError)
		}
	}
}

// publish publishes test events in one transaction of worlds.
func (b *bundle) publish(envelopes ...events.Envelope) {
	b.Helper()
	must(b.T, b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
		return publisherFor().Publish(b.ctx, envelopes...)
	}))
}

// publishMany publishes n test events, numbered from 0, in one transaction.
func (b *bundle) publishMany(n int) []events.Envelope {
	b.Helper()
	all := make([]events.Envelope, n)
	for i := range all {
		all[i] = event(i)
	}
	b.publish(all...)
	return all
}

// event makes a test event.
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

// subscription is a consumer of test events with one runner.
func subscription(handlers ...events.Registration) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(pgtest.Generation, ""), EventType: happenedType,
		Primary: handlers[0], CoHandlers: handlers[1:], Concurrency: 1,
	}
}

// quickly retries without a noticeable delay.
var quickly = &events.RetryPolicy{MaxRetries: 5, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

// handler registers do under name, with quick retries.
func handler(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
	return events.Registration{Name: name, Retry: quickly, Handler: func(tx events.Tx) events.EventHandler {
		return func(ctx context.Context, e events.Envelope) error { return do(ctx, tx, e) }
	}}
}

// effect is a handler body that leaves a row in its context's table.
func effect(name string) func(context.Context, events.Tx, events.Envelope) error {
	scope := string(events.Registration{Name: name}.Scope())
	return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		var payload happened
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into "+scope+".effects values ($1, $2, $3, $4)", name, e.IdempotencyKey, e.EventID, payload.N)
		return err
	}
}

// leaving registers a handler that leaves its effect and does nothing else.
func leaving(name string) events.Registration { return handler(name, effect(name)) }

// row is what a test looks at in core.outbox.
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

func (b *bundle) wantRow(id uuid.UUID, status string, attempts int) row {
	b.Helper()
	r := b.row(id)
	if r.Status != status || r.Attempts != attempts {
		b.Fatalf("event is %s after %d attempts, want %s after %d; last_error: %s", r.Status, r.Attempts, status, attempts, r.LastError)
	}
	return r
}

// wantEffects checks how often each handler has left its effect, over both contexts.
func (b *bundle) wantEffects(want map[string]int) {
	b.Helper()
	rows, err := b.pool.Query(b.ctx, `select handler, count(*)::int from
		(select handler from platform.effects union all select handler from worlds.effects) e group by handler`)
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

// handledBy lists the handlers that have handled a key, in order.
func (b *bundle) handledBy(key string) []string {
	b.Helper()
	return one[[]string](b, `select coalesce(array_agg(handler_name order by handler_name), '{}') from core.event_handled
		where idempotency_key = $1`, key)
}

// gate lets handlers announce that they run and wait to be let on.
type gate struct {
	entered chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}, 1000), open: make(chan struct{})}
}

func (g *gate) pass(ctx context.Context) error {
	g.entered <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) letOn() { g.once.Do(func() { close(g.open) }) }

// awaitAll awaits n of them.
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

// eventually awaits a condition of the database that announces itself in no other way. It asks at growing intervals.
func (b *bundle) eventually(what string, condition func() bool) {
	b.Helper()
	deadline := time.NewTimer(testTimeout)
	defer deadline.Stop()
	for pause := 2 * time.Millisecond; !condition(); pause = min(pause*3/2, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-deadline.C:
			b.Fatalf("%s: not within %s", what, testTimeout)
		}
	}
}

var errRefusing = errors.New("refusing")
