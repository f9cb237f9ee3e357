package integration_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

func TestWithEveryNotificationLostThePollDelivers(t *testing.T) {
	b := setup(t)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	l := b.listen(50*time.Millisecond, subscription(leaving("platform.one")))
	for n := range 5 {
		b.publish(event(n))
		l.delivered(1)
	}
}

// A DATABASE_URL that takes connections and never answers takes long to give up.
func TestThePollGoesOnWhileTheListenConnectionIsMade(t *testing.T) {
	b := setup(t)
	wire := &sockets{}
	gaveUp := make(chan struct{}, 100)
	wire.reach(func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		gaveUp <- struct{}{}
		return nil, ctx.Err()
	})
	l := b.newListener(50*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), through(wire))
	must(t, l.Start(b.ctx))
	t.Cleanup(l.stop)
	for n := range 5 {
		b.publish(event(n))
		l.delivered(1)
	}
	if len(gaveUp) > 0 {
		t.Fatal("the first attempt was over before the events were delivered")
	}
}

// The doorbell elects one notifier at a time. With the poll out of reach, a producer that stayed
// silent though nobody notified for it would leave its row behind.
func TestConcurrentProducersStrandNothing(t *testing.T) {
	b := setup(t)
	l := b.listen(never, subscription(leaving("platform.one")))
	const producers, each = 8, 50
	failed := make(chan error, producers)
	for p := range producers {
		go func() {
			failed <- func() error {
				conn, err := pgx.Connect(b.ctx, b.url)
				if err != nil {
					return err
				}
				defer func() { _ = conn.Close(b.ctx) }()
				for n := range each {
					sql := "select core.outbox_publish('worlds.test.happened', 'worlds', jsonb_build_object('n', $1::int))"
					if n%10 == 9 { // now and then one that publishes and aborts
						_, err = conn.Exec(b.ctx, "begin; "+fmt.Sprintf("select core.outbox_publish('worlds.test.happened', 'worlds', '{\"n\": %d}')", n)+"; rollback")
					} else {
						_, err = conn.Exec(b.ctx, sql, p*each+n)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range producers {
		must(t, <-failed)
	}
	l.delivered(producers * each * 9 / 10)
	if n := one[int](b, "select count(*)::int from core.outbox where status <> 'delivered'"); n != 0 {
		t.Fatalf("%d rows are not delivered", n)
	}
}

// One consumer at work must not keep another's events waiting, neither new ones nor due ones.
func TestAConsumerAtWorkDelaysNoOther(t *testing.T) {
	other := happenedContract()
	other.Type = "worlds.test.other"
	b := setup(t, other)
	g := newGate()
	l := b.newListener(never, pgtest.Generation, subscription(handler("platform.slow", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	})))
	s := subscription(leaving("platform.quick"))
	s.EventType = other.Type
	must(t, l.Listen(b.ctx, s))
	l.start()
	b.publish(event(1))
	g.awaitEntered(t)
	scheduled, fresh := event(2), event(3)
	scheduled.EventType, fresh.EventType = other.Type, other.Type
	at := one[time.Time](b, "select clock_timestamp() + interval '300 milliseconds'")
	must(t, b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
		return publisherFor(events.AvailableAt(at)).Publish(b.ctx, scheduled)
	}))
	b.publish(fresh)
	elected, silent := b.producerOf(other.Type), b.producerOf(other.Type)
	b.commit(elected)
	for n := range 4 {
		if n == 2 {
			b.commit(silent) // after its notifier was drained
		}
		if s := l.next(); s.Envelope.EventType != other.Type {
			t.Fatalf("the slow one settled first: %+v", s)
		}
	}
	g.letOn()
	l.delivered(1)
}

func TestALostListenConnectionIsReplaced(t *testing.T) { replaced(t, 2) }

// bullmq#4729: a dropped LISTEN is issued again each time, and there is never a second connection.
func replaced(t *testing.T, times int) {
	t.Helper()
	b := setup(t)
	l := b.listen(never, subscription(leaving("platform.one")))
	for n := range times {
		changed := l.Health().Changed()
		b.killDoorbell() // which wants one
		within(t, changed)
		b.publish(event(n)) // while no connection listens
		l.delivered(1)
		l.wantState(patience, postgres.Listening, "")
		b.publish(event(n)) // of which only a notification tells
		l.delivered(1)
	}
}

func TestStopWaitsForHandlers(t *testing.T) {
	b := setup(t)
	g := newGate()
	s := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	}))
	s.Concurrency = 1 // a second runner might be about to claim
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	first := event(1)
	b.publish(first)
	g.awaitEntered(t)
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		defer cancel()
		stopped <- l.Stop(ctx)
	}()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	must(t, l.Health().Await(ctx, postgres.Stopping))
	b.publish(event(2)) // not claimed any more
	g.letOn()
	must(t, <-stopped)
	b.wantRow(first.EventID, "delivered", 1)
	if n := one[int](b, "select count(*)::int from core.outbox where status = 'pending'"); n != 1 {
		t.Fatalf("%d events are pending", n)
	}
}

func TestStopCancelsHandlersWhenItsContextEnds(t *testing.T) {
	b := setup(t)
	g := newGate()
	l := b.newListener(never, pgtest.Generation, subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := g.pass(ctx); err != nil {
			return err
		}
		return effect("platform.one")(ctx, tx, e)
	})))
	l.start()
	first := event(1)
	b.publish(first)
	g.awaitEntered(t)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel() // no grace at all
	if err := l.Stop(ctx); err == nil {
		t.Fatal("Stop did not say that a handler was cancelled")
	}
	l.stop() // once more does no harm
	b.wantRow(first.EventID, "pending", 0)
	b.wantEffects(map[string]int{})

	g.letOn()
	again := b.listen(never, subscription(handler("platform.one", effect("platform.one"))))
	again.delivered(1)
	b.wantRow(first.EventID, "delivered", 1)
}
