package integration_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/tests/pgtest"
)

// TestWakeUp runs cases that share a database: the interleavings that the wake-up protocol must survive, and what a worker does without notifications.
func TestWakeUp(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"with every notification lost the poll delivers":    withEveryNotificationLostThePollDelivers,
		"concurrent producers strand nothing":               concurrentProducersStrandNothing,
		"a silent producer is waited for":                   aSilentProducerIsWaitedFor,
		"one poll follows the barrier":                      onePollFollowsTheBarrier,
		"the notifiers lock is waited for":                  theNotifiersLockIsWaitedFor,
		"listen comes before the first poll":                listenComesBeforeTheFirstPoll,
		"a producer that meets the barrier notifies":        aProducerThatMeetsTheBarrierNotifies,
		"what a silent producers notifier leaves is polled": whatASilentProducersNotifierLeavesIsPolled,
	})
}

func withEveryNotificationLostThePollDelivers(b *bundle) {
	b.exec("alter table core.outbox disable trigger outbox_notify")
	l := b.listen(50*time.Millisecond, subscription(leaving("platform.one")))
	for n := range 5 {
		b.publish(event(n))
		l.delivered(1)
	}
}

// The trigger elects one notifier at a time. With the poll out of reach, a producer that stayed
// silent though no other notified for it would leave its row behind.
func concurrentProducersStrandNothing(b *bundle) {
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	const producers, each = 4, 20
	countOf(b.T, producers, func() (bool, error) {
		for n := range each {
			end := "commit"
			if n%10 == 9 {
				end = "rollback"
			}
			if _, err := b.pool.Exec(b.ctx, `begin; select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 1}'); `+end); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	l.delivered(producers * each * 9 / 10)
	if n := one[int](b, "select count(*)::int from core.outbox where status <> 'delivered'"); n != 0 {
		b.Fatalf("%d rows are not delivered", n)
	}
}

// One busy consumer must not keep another's events waiting, neither new ones nor due ones.
func aBusyConsumerDelaysNoOther(b *bundle) {
	g := newGate()
	l := b.newWorker(noPoll, pgtest.Generation, subscription(handler("platform.slow", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	})))
	s := subscription(leaving("platform.quick"))
	s.EventType = otherType
	must(b.T, l.Listen(b.ctx, s))
	l.start()
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
			b.commit(silent) // after its notifier was drained
		}
		if s := l.next(); s.Envelope.EventType != otherType {
			b.Fatalf("the slow one settled first: %+v", s)
		}
	}
	g.letOn()
	l.delivered(1)
}

// bullmq#4729: a dropped LISTEN is issued again each time, and there is never a second connection.
func aLostListenConnectionIsReplaced(b *bundle) {
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	for n := range 2 {
		changed := l.Health().Changed()
		b.killNotifier() // which wants one
		within(b.T, changed)
		b.publish(event(n)) // while no connection listens
		l.delivered(1)
		l.wantState(testTimeout, notify.Listening, "")
		b.publish(event(n)) // of which only a notification tells
		l.delivered(1)
	}
}

// TestListenConnection runs cases that share a database.
func TestListenConnection(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"a busy consumer delays no other":               aBusyConsumerDelaysNoOther,
		"a lost listen connection is replaced":          aLostListenConnectionIsReplaced,
		"a refused listen connection is said and heals": aRefusedListenConnectionIsSaidAndHeals,
		"stop returns whatever the worker is doing":     stopReturnsWhateverTheWorkerIsDoing,
		"stop cancels handlers when its context ends":   stopCancelsHandlersWhenItsContextEnds,
	})
}

func stopCancelsHandlersWhenItsContextEnds(b *bundle) {
	g := newGate()
	l := b.newWorker(noPoll, pgtest.Generation, subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := g.pass(ctx); err != nil {
			return err
		}
		return effect("platform.one")(ctx, tx, e)
	})))
	l.start()
	first := event(1)
	b.publish(first)
	g.awaitEntered(b.T)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel() // no grace at all
	if err := l.Stop(ctx); err == nil {
		b.Fatal("Stop did not say that a handler was cancelled")
	}
	l.stop() // once more does no harm
	b.wantRow(first.EventID, "pending", 0)
	b.wantEffects(map[string]int{})

	g.letOn()
	again := b.listen(noPoll, subscription(handler("platform.one", effect("platform.one"))))
	again.delivered(1)
	b.wantRow(first.EventID, "delivered", 1)
}

// The interleavings that the notifier must survive, each forced: the poll is out of reach, so a
// row that the protocol strands stays behind.

// producer publishes and makes the trigger decide now; its commit is the test's to make.
func (b *bundle) producer() *pgx.Conn { return b.producerOf(happenedType) }

func (b *bundle) producerOf(eventType string) *pgx.Conn {
	b.Helper()
	conn := b.conn()
	_, err := conn.Exec(b.ctx, `begin; select core.outbox_publish('`+eventType+`', 'worlds', '{"n": 1}'); set constraints all immediate`)
	must(b.T, err)
	return conn
}

func (b *bundle) commit(conn *pgx.Conn) {
	b.Helper()
	_, err := conn.Exec(b.ctx, "commit")
	must(b.T, err)
}

// before runs do, once, before the listener's connection first sends a statement with this text.
func before(text string, do func()) func(*pgx.ConnConfig) { return beforeEach(text, sync.OnceFunc(do)) }

// beforeEach is before for each time.
func beforeEach(text string, do func()) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // the text goes over the wire each time
		dial := c.DialFunc
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return &watchedConn{conn, []byte(text), do}, err
		}
	}
}

type watchedConn struct {
	net.Conn
	text []byte
	do   func()
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, c.text) {
		c.do()
	}
	return c.Conn.Write(p)
}

// The elected notifier commits and is drained while a silent one is still in its commit: the listener asks until it is over.
func aSilentProducerIsWaitedFor(b *bundle) {
	asked := make(chan struct{}, 1000)
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")),
		beforeEach("outbox_barrier", func() { asked <- struct{}{} }))
	l.start()
	elected, silent := b.producer(), b.producer()
	b.commit(elected)
	l.delivered(1)
	for range 6 { // more than it asks when no producer is in its commit
		within(b.T, asked)
	}
	b.commit(silent)
	l.delivered(1)
}

// The silent one commits after the last poll and before the question of the barrier.
func onePollFollowsTheBarrier(b *bundle) {
	elected, silent := b.producer(), b.producer()
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")),
		before("outbox_barrier", func() { b.commit(silent) }))
	b.commit(elected)
	l.start()
	l.delivered(2)
}

// Postgres lets a transaction's locks go one by one: S may be free while A is still held, and a
// producer that comes then stays silent.
func theNotifiersLockIsWaitedFor(b *bundle) {
	holder := b.conn()
	_, err := holder.Exec(b.ctx, "begin; select pg_advisory_xact_lock(hashtextextended('outbox_gen_1', 2891336453310961517))")
	must(b.T, err)
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	silent := b.producer()
	b.commit(silent)
	l.delivered(1)
}

// A row is committed before LISTEN takes effect: the first poll comes after it and finds the row.
func listenComesBeforeTheFirstPoll(b *bundle) {
	producer := b.producer()
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")),
		before("listen ", func() { b.commit(producer) }))
	l.start()
	l.delivered(1)
}

// A listener at its barrier holds S alone: a producer that finds it so notifies, whichever others do.
func aProducerThatMeetsTheBarrierNotifies(b *bundle) {
	raw := pgtest.Conn(b.T, b.url)
	_, err := raw.Exec(b.ctx, "listen outbox_gen_1")
	must(b.T, err)
	barrier := b.conn()
	_, err = barrier.Exec(b.ctx, "begin; select pg_advisory_xact_lock(hashtextextended('outbox_gen_1', 7310579632010148197))")
	must(b.T, err)
	first, second := b.producer(), b.producer()
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

// A notifier that aborts after its decision leaves a producer that was silent beside it to the poll.
func whatASilentProducersNotifierLeavesIsPolled(b *bundle) {
	l := b.listen(500*time.Millisecond, subscription(leaving("platform.one")))
	elected := b.producerOf(happenedType)
	silent := b.producerOf(happenedType)
	b.commit(silent)
	_, err := elected.Exec(b.ctx, "rollback")
	must(b.T, err)
	l.delivered(1)
}
