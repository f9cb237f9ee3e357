package integration_test

import (
	"context"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// slowType is an event of a processing class of its own.
const slowType = "worlds.test.slow"

func slowContract() events.Contract {
	c := happenedContract()
	c.Type, c.Class = slowType, "slow"
	return c
}

// slow makes an event of the slow class.
func slow(n int) events.Envelope {
	e := event(n)
	e.EventType = slowType
	return e
}

func slowSubscription(handlers ...events.Registration) events.Subscription {
	s := leasing(time.Minute, handlers...)
	s.EventType, s.Channel = slowType, events.ChannelName(pgtest.Generation, "slow")
	return s
}

// A class with a backlog and nothing but slow work in hand delays no other, also in the same process.
func TestASlowClassDelaysNoOther(t *testing.T) {
	b := setup(t, slowContract())
	g := newGate()
	t.Cleanup(g.letOn)
	l := b.newListener(never, pgtest.Generation, subscription(leaving("platform.quick")))
	must(t, l.Listen(b.ctx, slowSubscription(executor("worlds.slow", func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion("worlds.slow", e), g.pass(ctx)
	}))))
	l.start()
	const backlog = 500
	var all []events.Envelope
	for n := range backlog {
		all = append(all, slow(n))
	}
	b.publish(all...)
	g.awaitAll(t, 8)
	for n := range 200 {
		b.publish(event(n))
	}
	l.delivered(200) // while every slow one waits at the gate
	b.wantEffects(map[string]int{"platform.quick": 200})
	g.letOn()
	l.delivered(backlog)
	b.wantEffects(map[string]int{"platform.quick": 200, "worlds.slow": backlog})
}

// A worker of one class leaves the others alone, and is rung for its own.
func TestAWorkerOfOneClass(t *testing.T) {
	b := setup(t, slowContract())
	s := b.listen(never, slowSubscription(completing("worlds.slow")))
	var slows, quicks []events.Envelope
	for n := range 20 {
		slows, quicks = append(slows, slow(n)), append(quicks, event(n))
	}
	b.publish(append(quicks, slows...)...)
	s.delivered(len(slows))
	b.publish(slow(20))
	s.delivered(1)
	if n := one[int](b, "select count(*) from core.outbox where event_type = $1 and status = 'pending' and attempts = 0", happenedType); n != len(quicks) {
		t.Fatalf("%d of %d events of the other class are as they were", n, len(quicks))
	}
	channels := one[[]string](b, "select array_agg(distinct channel order by channel) from core.outbox")
	if len(channels) != 2 || channels[0] != "outbox_gen_1" || channels[1] != "outbox_gen_1_slow" {
		t.Fatal(channels)
	}
	q := b.listen(never, subscription(leaving("platform.quick")))
	q.delivered(len(quicks))
	b.wantEffects(map[string]int{"platform.quick": len(quicks), "worlds.slow": len(slows) + 1})
}
