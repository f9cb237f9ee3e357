package integration_test

import (
	"context"
	"fmt"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/pgtest"
)

// slowType is an event of a processing class of its own.
const slowType = "worlds.test.slow"

// slow makes an event of the slow class.
func slow(n int) events.Envelope { return ofType(slowType, event(n)) }

func slowSubscription(handlers ...events.Registration) events.Subscription {
	s := leasing(time.Hour, handlers...) // so that a completion may wait for a lock as long as any
	s.EventType, s.Channel = slowType, events.ChannelName(pgtest.Generation, "slow")
	return s
}

// sluggishType is another event of the slow class, handled under its row's lock.
const sluggishType = "worlds.test.sluggish"

// A class with a backlog and nothing but slow work delays no other, also in the same process and with no more
// connections than its consumers need: neither by executions, nor by completions that wait, nor by handlers under a lock.
func aSlowClassDelaysNoOther(b *bundle) {
	const backlog, completes, quick = 60, 40, 50 // of the slow ones the first come to their completions
	holder := b.hold(completes)
	executing, handling := newGate(), newGate()
	b.Cleanup(func() { executing.letOn(); handling.letOn() })
	slowly := slowSubscription(executor("platform.slow", func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if payloadN(e) >= completes {
			if err := executing.pass(ctx); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, tx events.Tx) error {
			if err := contend(ctx, tx, e); err != nil {
				return err
			}
			return effect("platform.slow")(ctx, tx, e)
		}, nil
	}))
	slowly.Concurrency = backlog
	quickly := subscription(leaving("platform.quick"))
	sluggishly := subscription(handler("worlds.sluggish", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := handling.pass(ctx); err != nil {
			return err
		}
		return effect("worlds.sluggish")(ctx, tx, e)
	}))
	sluggishly.EventType, sluggishly.Channel = sluggishType, slowly.Channel
	connections := worker.Connections(quickly) + worker.Connections(slowly) + worker.Connections(sluggishly)
	b.poolURL += fmt.Sprintf("&pool_max_conns=%d", connections)
	l := b.newWorker(noPoll, pgtest.Generation, quickly)
	must(b.T, l.Listen(b.ctx, slowly))
	must(b.T, l.Listen(b.ctx, sluggishly))
	l.start()
	var all []events.Envelope
	for n := range backlog {
		all = append(all, slow(n), ofType(sluggishType, event(n)))
	}
	b.publish(all...)
	executing.awaitAll(b.T, backlog-completes)
	handling.awaitAll(b.T, sluggishly.WithDefaults().Concurrency)
	b.eventually("completions wait, and all who settle", func() bool {
		return one[int](b, `select count(*) from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and a.datname = current_database()`) == 4
	})
	b.publishMany(quick)
	l.delivered(quick) // while every slow one waits
	b.wantEffects(map[string]int{"platform.quick": quick})
	_, err := holder.Exec(b.ctx, "rollback")
	must(b.T, err)
	executing.letOn()
	handling.letOn()
	l.delivered(len(all))
	b.wantEffects(map[string]int{"platform.quick": quick, "platform.slow": backlog, "worlds.sluggish": backlog})
}

// A worker of one class leaves the others alone, and is notified of its own.
func aWorkerOfOneClassLeavesTheOthers(b *bundle) {
	s := b.listen(noPoll, slowSubscription(completing("worlds.slow")))
	var slows, quicks []events.Envelope
	for n := range 20 {
		slows, quicks = append(slows, slow(n)), append(quicks, event(n))
	}
	b.publish(append(quicks, slows...)...)
	s.delivered(len(slows))
	b.publish(slow(20))
	s.delivered(1)
	if n := one[int](b, "select count(*) from core.outbox where event_type = $1 and status = 'pending' and attempts = 0", happenedType); n != len(quicks) {
		b.Fatalf("%d of %d events of the other class are as they were", n, len(quicks))
	}
	channels := one[[]string](b, "select array_agg(distinct channel order by channel) from core.outbox")
	if len(channels) != 2 || channels[0] != "outbox_gen_1" || channels[1] != "outbox_gen_1_slow" {
		b.Fatal(channels)
	}
	q := b.listen(noPoll, subscription(leaving("platform.quick")))
	q.delivered(len(quicks))
	b.wantEffects(map[string]int{"platform.quick": len(quicks), "worlds.slow": len(slows) + 1})
}
