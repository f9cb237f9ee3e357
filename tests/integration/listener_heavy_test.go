//go:build heavy

package integration_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/tests/pgtest"
)

// What takes its time to be noticed.

func TestAHalfOpenListenConnectionIsNoticed(t *testing.T) {
	b := setup(t)
	wire := &sockets{}
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")), through(wire))
	l.start()
	b.waiting()
	wire.swallow()
	b.publish(event(1))
	l.wantState(15*time.Second, notify.Reconnecting, "no answer within")
	l.wantState(testTimeout, notify.Listening, "")
	l.delivered(1)
}

// A statement that gets no answer ends, and the loop goes on with a new connection: the old backend
// is told to stop, so that there is one of them again.
func TestAStalledPollIsGivenUp(t *testing.T) {
	b := setup(t)
	l := b.listen(50*time.Millisecond, subscription(leaving("platform.one")))
	before := b.notifierPIDs()
	lock := b.conn()
	_, err := lock.Exec(b.ctx, "begin; lock table core.outbox")
	must(t, err)
	l.wantState(11*time.Second, notify.Reconnecting, "no answer within") // whichever statement met the lock
	_, err = lock.Exec(b.ctx, "rollback")
	must(t, err)
	l.wantState(testTimeout, notify.Listening, "")
	b.publish(event(1))
	l.delivered(1)
	b.eventually("there is one LISTEN backend, a new one", func() bool {
		after := b.notifierPIDs()
		return len(after) == 1 && after[0] != before[0]
	})
}

func TestStopReturnsWhilePollingThroughAHalfOpenPool(t *testing.T) {
	b := setup(t)
	b.sockets = &sockets{}
	l := b.newWorker(50*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), through(&sockets{via: refusing}))
	must(t, l.Start(b.ctx))
	lock := b.conn()
	_, err := lock.Exec(b.ctx, "begin; lock table core.outbox")
	must(t, err)
	b.eventually("it polls", func() bool {
		return one[bool](b, "select count(*) > 0 from pg_stat_activity where datname = current_database() and application_name = 'workers' and wait_event_type = 'Lock'")
	})
	b.sockets.swallow()
	l.stops() // the driver cancels the statement and awaits the answer
}

// hatchet#2772, #3694: no slot of the pool is lost with a connection, and none comes back
// subscribed to anything (wpmgr#496).
func TestKilledBackendsLeakNoSlot(t *testing.T) {
	b := setup(t)
	l := b.listen(50*time.Millisecond, subscription(leaving("platform.one")))
	size := int(l.workers.Stat().MaxConns())
	killed := 0
	for n := 0; killed < 20; n++ {
		for _, conn := range b.allOf(l.workers) {
			conn.Release()
		}
		killed += one[int](b, `select count(pg_terminate_backend(pid))::int from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and application_name in ('notifier', 'workers')`)
		b.publish(event(n))
		l.delivered(1)
	}
	b.eventually("it listens again", func() bool { return len(b.notifierPIDs()) == 1 })
	l.wantState(testTimeout, notify.Listening, "")
	changed := l.Health().Changed()
	b.killNotifier()
	<-changed
	l.wantState(testTimeout, notify.Listening, "") // so the pool was used last for a self-test
	b.eventually("every slot is free", func() bool { return l.workers.Stat().AcquiredConns() == 0 })
	conns := b.allOf(l.workers)
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

// Forged notifications, of any content, cost a bounded number of polls and no memory, and hold up
// nothing.
func TestAFloodOfForgedNotificationsCostsBoundedPolls(t *testing.T) {
	t.Run("while all is quiet", func(t *testing.T) { flood(t, false) })
	t.Run("beside a producer that has decided", func(t *testing.T) { flood(t, true) })
}

func flood(t *testing.T, decided bool) {
	t.Helper()
	b := setup(t)
	s := &sockets{}
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")), through(s),
		func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec })
	l.start()
	if decided {
		b.producerOf(happenedType) // and is never done
	}
	s.looks.Store(0)
	started := time.Now()
	for range 500 { // one commit each: those of one transaction come in one piece
		_, err := b.pool.Exec(b.ctx, "select pg_notify('outbox_gen_1', gen_random_uuid() || repeat(E'\\x01', 7900)), pg_notify('outbox_gen_2', ''), pg_notify('outbox_gen_1', '')")
		must(t, err)
	}
	flooded := time.Since(started)
	b.exec("insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key) " +
		"select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{\"n\": 1}', 'k'; select pg_notify('outbox_gen_1', '')")
	l.delivered(1)
	// a notification makes two polls with a question between them, and the next is followed up pace later
	if looks, most := s.looks.Load(), int64(flooded/(2*time.Millisecond))*2+10; looks > most || looks == 0 {
		t.Fatalf("%d looks in %s, at most %d wanted", looks, flooded, most)
	} else {
		t.Logf("%d looks in %s", looks, flooded)
	}
}

// The self-test is for more than poolers: two URLs may lead to two databases.
func TestAListenConnectionToAnotherDatabaseIsSaid(t *testing.T) {
	b := setup(t)
	b.directURL = pgtest.New(t)
	wire := &sockets{}
	l := b.newWorker(100*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), through(wire))
	must(t, l.Start(b.ctx))
	t.Cleanup(l.stop)
	l.wantState(testTimeout, notify.Polling, "or to another database than SPECTRAL_POOL_URL")
	b.publish(event(1))
	l.delivered(1)
	b.eventually("it has tried again", func() bool { return wire.count() >= 2 })
	there := &bundle{T: t, ctx: b.ctx, pool: pgtest.Pool(t, b.directURL)}
	if n := len(there.notifierPIDs()); n > 1 {
		t.Fatalf("%d LISTEN backends", n)
	}
}
