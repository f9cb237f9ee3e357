package integration_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/telemetry"
	"spectral/tests/pgtest"
)

// TestWakeUp forces the interleavings that the notification protocol must survive. Unless a case says otherwise the
// worker does not poll, so an event that the protocol misses is not delivered.
func TestWakeUp(t *testing.T) {
	setup(t).cases(aProducerThatMeetsTheBarrierNotifies, anEventWithTheIDOfARunningOneIsDelivered,
		concurrentProducersLeaveNoEventBehind,
		listenComesBeforeTheFirstPoll, onePollFollowsTheBarrier, theBarrierWaitsForAProducerThatDidNotNotify,
		theBarrierWaitsForTheElectedProducersLock, thePollDeliversWhenNotificationsAreLost,
		thePollFindsAnEventWhoseNotifierAborted)
}

// An event that is published again has the id of the first; polls pass over that one while it is handled.
func anEventWithTheIDOfARunningOneIsDelivered(b *bundle) {
	g := b.newGate()
	s := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, e events.Envelope) error {
		if payloadN(e) == 1 {
			return g.wait(ctx)
		}
		return nil
	}))
	s.Concurrency = 2
	l := b.startWorker(noPoll, s)
	first, again := event(1), event(2)
	first.EventID = uuid.New()
	b.publish(first)
	g.awaitEntered(b.T)
	again.EventID, again.IdempotencyKey = first.EventID, "another"
	b.publish(again)
	l.awaitDelivered(1)
	g.release()
	l.awaitDelivered(1)
}

func thePollDeliversWhenNotificationsAreLost(b *bundle) {
	b.exec("alter table core.outbox disable trigger outbox_notify")
	l := b.startWorker(50*time.Millisecond, subscription(effectHandler("platform.one")))
	for n := range 5 {
		b.publish(event(n))
		l.awaitDelivered(1)
	}
}

// The trigger elects one producer at a time to notify for those that commit beside it.
func concurrentProducersLeaveNoEventBehind(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	const producers, each = 4, 20
	countOf(b.T, producers, func() (bool, error) {
		for n := range each {
			end := "commit"
			if n%10 == 9 {
				end = "rollback"
			}
			if _, err := b.pool.Exec(b.ctx, `begin; select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 1}');
				`+end); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	l.awaitDelivered(producers * each * 9 / 10)
	if n := one[int](b, "select count(*)::int from core.outbox where status <> 'delivered'"); n != 0 {
		b.Fatalf("%d rows are not delivered", n)
	}
}

// Neither new events nor scheduled ones of another consumer wait.
func aBusyConsumerDelaysNoOther(b *bundle) {
	g := b.newGate()
	s := subscription(effectHandler("platform.quick"))
	s.EventType = otherType
	l := b.startWorker(noPoll, subscription(gatedHandler("platform.slow", g)), s)
	b.publish(event(1))
	g.awaitEntered(b.T)
	scheduled, fresh := ofType(otherType, event(2)), ofType(otherType, event(3))
	at := one[time.Time](b, "select clock_timestamp() + interval '300 milliseconds'")
	must(b.T, b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
		return publisherFor(events.AvailableAt(at)).Publish(b.ctx, scheduled)
	}))
	b.publish(fresh)
	elected, silent := b.producerOf(otherType), b.producerOf(otherType)
	b.commit(elected)
	for n := range 4 {
		if n == 2 {
			b.commit(silent) // after the elected producer's event was handled
		}
		if s := l.nextSettlement(); s.Envelope.EventType != otherType {
			b.Fatalf("the slow event was settled first: %+v", s)
		}
	}
	g.release()
	l.awaitDelivered(1)
}

// LISTEN is issued on the new connection, and there is only one.
func aLostListenConnectionIsReplaced(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	for n := range 2 {
		changed := l.Health().Changed()
		b.killNotifier() // it fails the test unless there is exactly one
		receive(b.T, changed)
		b.publish(event(n)) // while no connection listens
		l.awaitDelivered(1)
		l.wantState(testTimeout, notify.Listening, "")
		b.publish(event(n)) // needs a notification
		l.awaitDelivered(1)
	}
}

func TestListenConnection(t *testing.T) {
	setup(t).cases(aBusyConsumerDelaysNoOther, aLostListenConnectionIsReplaced,
		aRefusedListenConnectionIsReportedAndRecovers, stopReturnsInAnyState)
}

// counts lets the workers of this test count, and returns what reads a counter.
func (b *bundle) counts() func(name string) int64 {
	b.Helper()
	reader := metric.NewManualReader()
	var err error
	b.telemetry, err = telemetry.New(telemetry.Config{Metrics: metric.NewMeterProvider(metric.WithReader(reader))})
	must(b.T, err)
	return func(name string) (n int64) {
		var read metricdata.ResourceMetrics
		must(b.T, reader.Collect(b.ctx, &read))
		for _, m := range read.ScopeMetrics[0].Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, p := range sum.DataPoints {
					n += p.Value
				}
			}
		}
		return n
	}
}

func (b *bundle) producerOf(eventType string) *pgx.Conn {
	b.Helper()
	conn := b.beginTx(`select core.outbox_publish($1, 'worlds', '{"n": 1}')`, eventType)
	_, err := conn.Exec(b.ctx, "set constraints all immediate")
	must(b.T, err)
	return conn
}

func (b *bundle) commit(conn *pgx.Conn) {
	b.Helper()
	_, err := conn.Exec(b.ctx, "commit")
	must(b.T, err)
}

// before calls do once, before the listen connection first sends a statement with the given text.
func before(text string, do func()) func(*pgx.ConnConfig) { return beforeEach(text, sync.OnceFunc(do)) }

// beforeEach calls do each time the listen connection sends a statement with the given text.
func beforeEach(text string, do func()) func(*pgx.ConnConfig) {
	s := &sockets{onWrite: func(p []byte) {
		if bytes.Contains(p, []byte(text)) {
			do()
		}
	}}
	return func(c *pgx.ConnConfig) {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // sends the text each time
		c.DialFunc = s.dial
	}
}

// The elected producer commits and its event is handled while the other is still in its commit.
func theBarrierWaitsForAProducerThatDidNotNotify(b *bundle) {
	counted := b.counts()
	asked := make(chan struct{}, 1000)
	l := b.newWorker(noPoll, subscription(effectHandler("platform.one")),
		beforeEach("outbox_barrier", func() { asked <- struct{}{} }))
	l.start()
	elected, silent := b.producerOf(happenedType), b.producerOf(happenedType)
	b.commit(elected)
	l.awaitDelivered(1)
	for range 6 { // more often than without a producer in its commit
		receive(b.T, asked)
	}
	b.commit(silent)
	l.awaitDelivered(1)
	if counted(telemetry.Refusals) < 1 {
		b.Error("no refusal of the barrier is counted")
	}
}

// The other producer commits after the last poll and before the barrier.
func onePollFollowsTheBarrier(b *bundle) {
	elected, silent := b.producerOf(happenedType), b.producerOf(happenedType)
	l := b.newWorker(noPoll, subscription(effectHandler("platform.one")),
		before("outbox_barrier", func() { b.commit(silent) }))
	b.commit(elected)
	l.start()
	l.awaitDelivered(2)
}

// Postgres releases a transaction's locks one by one: S may be free while A is still held, and a producer that comes
// then does not notify.
func theBarrierWaitsForTheElectedProducersLock(b *bundle) {
	b.beginTx("select pg_advisory_xact_lock(hashtextextended('outbox_gen_1', 2891336453310961517))")
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	silent := b.producerOf(happenedType)
	b.commit(silent)
	l.awaitDelivered(1)
}

// The event is committed before LISTEN takes effect.
func listenComesBeforeTheFirstPoll(b *bundle) {
	producer := b.producerOf(happenedType)
	l := b.newWorker(noPoll, subscription(effectHandler("platform.one")),
		before("listen ", func() { b.commit(producer) }))
	l.start()
	l.awaitDelivered(1)
}

// The barrier holds S alone: every producer that finds it held notifies.
func aProducerThatMeetsTheBarrierNotifies(b *bundle) {
	raw := pgtest.Conn(b.T, b.url)
	_, err := raw.Exec(b.ctx, "listen outbox_gen_1")
	must(b.T, err)
	b.beginTx("select pg_advisory_xact_lock(hashtextextended('outbox_gen_1', 7310579632010148197))")
	first, second := b.producerOf(happenedType), b.producerOf(happenedType)
	b.commit(second)
	b.commit(first)
	ctx, cancel := context.WithTimeout(b.ctx, testTimeout)
	defer cancel()
	for range 2 {
		if _, err := raw.WaitForNotification(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// The elected producer aborts after its decision, and the other did not notify.
func thePollFindsAnEventWhoseNotifierAborted(b *bundle) {
	counted := b.counts()
	l := b.startWorker(500*time.Millisecond, subscription(effectHandler("platform.one")))
	elected := b.producerOf(happenedType)
	silent := b.producerOf(happenedType)
	b.commit(silent)
	b.rollback(elected)
	l.awaitDelivered(1)
	if have := counted(telemetry.SilentCommits); have != 1 {
		b.Errorf("%d silent commits are counted", have)
	}
}
