package integration_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

func TestBreakers(t *testing.T) {
	setup(t).cases(aBreakerLetsEventsWait, aBreakerOfLeasedWork, onePoisonEventOpensNoBreaker, aForcedBreakerIsNotProbed,
		aSlowProbeHoldsUpNoOther, aBreakerOfAHandlerThatIsGone)
}

// dependency is something that a handler depends on, and that may be down.
type dependency struct {
	down  atomic.Bool
	calls atomic.Int32
}

var errDown = errors.New("connection refused by the mail server")

func (d *dependency) call() error {
	d.calls.Add(1)
	if d.down.Load() {
		return errDown
	}
	return nil
}

func (b *bundle) awaitAllDelivered(n int) {
	b.Helper()
	b.eventually("all are delivered", func() bool {
		return one[int](b, "select count(*)::int from core.outbox where status = 'delivered'") == n
	})
}

func (b *bundle) waiting() int {
	return one[int](b, "select count(*)::int from core.outbox where status = 'pending' and waiting_for is not null")
}

// A handler whose dependency is down is hardly called. Its co-handler runs once for each event. Nothing fails, and no
// attempt is counted but those that opened the breaker. When the dependency is back, everything is delivered.
func aBreakerLetsEventsWait(b *bundle) {
	var mail dependency
	mail.down.Store(true)
	r := handler("platform.mailer", func(context.Context, events.Tx, events.Envelope) error { return mail.call() })
	b.startWorker(noPoll, subscription(effectHandler("worlds.two"), r))
	const n = 300
	b.publishMany(n)
	b.eventually("all wait for the breaker, but those that opened it", func() bool { return b.waiting() >= n-20 })
	// each waits since its first turn, whatever probes there were
	b.eventually("the co-handler has handled all", func() bool {
		return one[int](b, "select count(*)::int from core.event_handled where handler_name = 'worlds.two'") == n
	})
	if calls := mail.calls.Load(); calls > 60 {
		b.Errorf("the handler was called %d times", calls)
	}
	mail.down.Store(false)
	b.awaitAllDelivered(n)
	b.wantEffects(map[string]int{"worlds.two": n})
	if tried := one[int](b, "select count(*)::int from core.outbox where attempts > 1"); tried > 20 {
		b.Errorf("%d events have cost attempts", tried)
	}
	if open := one[int](b, "select count(*)::int from core.breakers"); open != 0 {
		b.Errorf("%d breakers are open", open)
	}
}

// The same of leased work: no lease begins for nothing.
func aBreakerOfLeasedWork(b *bundle) {
	var mail dependency
	mail.down.Store(true)
	b.startWorker(noPoll, leasedSubscription(events.DefaultLease,
		executor("platform.sender", func(context.Context, events.Envelope) (events.Completion, error) {
			return nil, mail.call()
		})))
	const n = 100
	b.publishMany(n)
	b.eventually("all wait for the breaker, but those that opened it", func() bool { return b.waiting() >= n-30 })
	mail.down.Store(false)
	b.awaitAllDelivered(n)
	if calls := mail.calls.Load(); calls > n+60 {
		b.Errorf("the handler was called %d times", calls)
	}
	if failed := one[int](b, "select count(*)::int from core.outbox where status = 'failed'"); failed != 0 {
		b.Errorf("%d have failed", failed)
	}
}

// An event that always fails neither opens the breaker nor, among others, keeps it open.
func onePoisonEventOpensNoBreaker(b *bundle) {
	var mail dependency
	l := b.startWorker(noPoll, subscription(handler("platform.mailer",
		func(_ context.Context, _ events.Tx, e events.Envelope) error {
			if payloadN(e) == 0 {
				return errOnPurpose
			}
			return mail.call()
		})))
	b.publish(event(0))
	l.awaitOutcome(dispatch.Failed)
	if open := one[int](b, "select count(*)::int from core.breakers"); open != 0 {
		b.Errorf("one event has opened %d breakers", open)
	}
	mail.down.Store(true)
	b.publish(event(0))
	b.publishMany(30)
	b.eventually("the breaker is open", func() bool { return one[int](b, "select count(*)::int from core.breakers") == 1 })
	mail.down.Store(false)
	b.eventually("it is closed, and all others are delivered", func() bool {
		return one[int](b, "select count(*)::int from core.breakers") == 0 &&
			one[int](b, "select count(*)::int from core.outbox where status = 'delivered'") >= 29
	})
}

// An operator's breaker stays open until an operator closes it.
func aForcedBreakerIsNotProbed(b *bundle) {
	var mail dependency
	client := b.operator()
	l := b.startWorker(noPoll, subscription(handler("platform.mailer",
		func(context.Context, events.Tx, events.Envelope) error { return mail.call() })))
	b.publish(event(0))
	l.awaitDelivered(1)
	must(b.T, client.TripHandler(b.ctx, b.generation, "platform.mailer", "anna", "the mail server moves"))
	b.publishMany(5)
	b.eventually("all wait", func() bool { return b.waiting() == 5 })
	released, err := client.CloseHandler(b.ctx, b.generation, "platform.mailer", "anna")
	must(b.T, err)
	l.awaitDelivered(5)
	if released != 5 || mail.calls.Load() != 6 {
		b.Errorf("%d were made due, and %d called", released, mail.calls.Load())
	}
}

// While one breaker is probed by a slow call, another one is probed twice, and closes.
func aSlowProbeHoldsUpNoOther(b *bundle) {
	hold := make(chan struct{})
	var mail dependency
	mail.down.Store(true)
	slow := handler("platform.slow", func(context.Context, events.Tx, events.Envelope) error {
		<-hold
		return nil
	})
	b.publish(event(0))
	b.exec("insert into core.breakers (generation, handler_name, event_type, opened_by, cause, next_probe_at) "+
		"select $1, h, $2, 'test', 'E', now() - interval '1 hour' from unnest('{platform.mailer,platform.slow}'::text[]) h",
		int64(b.generation), happenedType)
	b.exec("update core.outbox set waiting_for = 'platform.slow', available_at = now() + interval '1000 years'")
	b.publish(event(1))
	b.exec("update core.outbox set waiting_for = 'platform.mailer', available_at = now() + interval '1000 years' " +
		"where waiting_for is null")
	defer close(hold)
	b.startWorker(noPoll, subscription(slow,
		handler("platform.mailer", func(context.Context, events.Tx, events.Envelope) error {
			defer mail.down.Store(false)
			return mail.call()
		})))
	b.eventually("the other breaker is closed", func() bool {
		return one[string](b, "select string_agg(handler_name, ' ') from core.breakers") == "platform.slow"
	})
}

// The breaker of a handler that the generation's workers do not have any more closes: its events wait for none.
func aBreakerOfAHandlerThatIsGone(b *bundle) {
	b.publish(event(0))
	b.exec("insert into core.breakers (generation, handler_name, event_type, opened_by, cause) values ($1, "+
		"'platform.gone', $2, 'test', 'E')", int64(b.generation), happenedType)
	b.exec("update core.outbox set waiting_for = 'platform.gone', available_at = now() + interval '1000 years'")
	b.startWorker(noPoll, subscription(effectHandler("worlds.two")))
	b.awaitAllDelivered(1)
	if open := one[int](b, "select count(*)::int from core.breakers"); open != 0 {
		b.Errorf("%d breakers are open", open)
	}
}
