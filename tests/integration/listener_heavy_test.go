//go:build heavy

package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/tests/pgtest"
)

func TestHalfOpenListenConnectionIsReplaced(t *testing.T) {
	b := setup(t)
	wire := &sockets{}
	l := b.newWorker(noPoll, subscription(effectHandler("platform.one")), dialedBy(wire))
	l.start()
	b.awaitNotifierIdle()
	wire.dropTraffic()
	b.publish(event(1))
	l.wantState(15*time.Second, notify.Reconnecting, "no answer within")
	l.wantState(testTimeout, notify.Listening, "")
	l.awaitDelivered(1)
}

// A poll without a reply is cancelled on a new connection, and its backend ends.
func TestStalledPollIsCancelled(t *testing.T) {
	b := setup(t)
	l := b.startWorker(50*time.Millisecond, subscription(effectHandler("platform.one")))
	before := b.notifierPIDs()
	lock := b.beginTx("lock table core.outbox")
	l.wantState(11*time.Second, notify.Reconnecting, "no answer within")
	b.rollback(lock)
	l.wantState(testTimeout, notify.Listening, "")
	b.publish(event(1))
	l.awaitDelivered(1)
	b.eventually("a single, new listen backend", func() bool {
		after := b.notifierPIDs()
		return len(after) == 1 && after[0] != before[0]
	})
}

func TestStopReturnsWhilePollingThroughAHalfOpenPool(t *testing.T) {
	b := setup(t)
	b.sockets = &sockets{}
	l := b.newWorker(50*time.Millisecond, subscription(effectHandler("platform.one")),
		dialedBy(&sockets{via: refuseDial}))
	must(t, l.Start(b.ctx))
	b.beginTx("lock table core.outbox")
	b.eventually("a poll", func() bool {
		return one[bool](b, `select count(*) > 0 from pg_stat_activity where datname = current_database()
			and application_name = 'workers' and wait_event_type = 'Lock'`)
	})
	b.sockets.dropTraffic()
	l.stop() // the driver cancels the statement and waits for the reply
}

// The pool gets every connection back, and none of them is still subscribed.
func TestKilledBackendsLeakNoPoolConnection(t *testing.T) {
	b := setup(t)
	l := b.startWorker(50*time.Millisecond, subscription(effectHandler("platform.one")))
	size := int(l.workers.Stat().MaxConns())
	killed := 0
	for n := 0; killed < 20; n++ {
		for _, conn := range b.acquireAll(l.workers) {
			conn.Release()
		}
		killed += one[int](b, `select count(pg_terminate_backend(pid))::int from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and application_name in ('notifier', 'workers')`)
		b.publish(event(n))
		l.awaitDelivered(1)
	}
	b.eventually("a new listen connection", func() bool { return len(b.notifierPIDs()) == 1 })
	l.wantState(testTimeout, notify.Listening, "")
	changed := l.Health().Changed()
	b.killNotifier()
	<-changed
	l.wantState(testTimeout, notify.Listening, "")
	b.eventually("the release of every connection", func() bool { return l.workers.Stat().AcquiredConns() == 0 })
	conns := b.acquireAll(l.workers)
	if len(conns) != size {
		t.Fatalf("%d connections of %d", len(conns), size)
	}
	for _, conn := range conns {
		var channels int
		must(t, conn.QueryRow(b.ctx, "select count(*)::int from pg_listening_channels()").Scan(&channels))
		if channels > 0 {
			t.Error("a connection of the pool is subscribed")
		}
		conn.Release()
	}
}

// Forged notifications cost a bounded number of polls and no memory, and delay no event.
func TestForgedNotificationsCostBoundedPolls(t *testing.T) {
	t.Run("without producers", func(t *testing.T) { floodWithNotifications(t, false) })
	t.Run("with an open transaction of a producer", func(t *testing.T) { floodWithNotifications(t, true) })
}

func floodWithNotifications(t *testing.T, withProducer bool) {
	t.Helper()
	b := setup(t)
	var polls atomic.Int64
	l := b.newWorker(noPoll, subscription(effectHandler("platform.one")),
		beforeEach("outbox_barrier_poll", func() { polls.Add(1) }))
	l.start()
	if withProducer {
		b.producerOf(happenedType)
	}
	polls.Store(0)
	started := time.Now()
	for range 500 { // one transaction each, since the server merges the notifications of one
		_, err := b.pool.Exec(b.ctx, `select pg_notify('outbox_gen_1', gen_random_uuid() || repeat(E'\x01', 7900)),
			pg_notify('outbox_gen_2', ''), pg_notify('outbox_gen_1', '')`)
		must(t, err)
	}
	flooded := time.Since(started)
	b.exec(`insert into core.outbox
			(event_type, event_version, source, content_class, channel, generation, payload, idempotency_key)
		select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"n": 1}', 'k';
		select pg_notify('outbox_gen_1', '')`)
	l.awaitDelivered(1)
	// A notification costs two polls with a barrier between them, and the next one is handled a pace later.
	if n, most := polls.Load(), int64(flooded/(2*time.Millisecond))*2+10; n > most || n == 0 {
		t.Fatalf("%d polls in %s, at most %d wanted", n, flooded, most)
	}
}

// The self-test also finds URLs that lead to different databases.
func TestListenConnectionToAnotherDatabaseIsReported(t *testing.T) {
	b := setup(t)
	b.directURL = pgtest.New(t)
	wire := &sockets{}
	l := b.newWorker(100*time.Millisecond, subscription(effectHandler("platform.one")), dialedBy(wire))
	must(t, l.Start(b.ctx))
	t.Cleanup(l.stop)
	l.wantState(testTimeout, notify.Polling, "or to another database than SPECTRAL_POOL_URL")
	b.publish(event(1))
	l.awaitDelivered(1)
	b.eventually("another connection attempt", func() bool { return wire.count() >= 2 })
	otherDatabase := &bundle{T: t, ctx: b.ctx, pool: pgtest.Pool(t, b.directURL)}
	if n := len(otherDatabase.notifierPIDs()); n > 1 {
		t.Fatalf("%d listen backends", n)
	}
}
