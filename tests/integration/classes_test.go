package integration_test

import (
	"context"
	"fmt"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/pgtest"
)

// slowType and rowLockedSlowType are events of the processing class slow.
const slowType, rowLockedSlowType = "worlds.test.slow", "worlds.test.rowlocked"

func slow(n int) events.Envelope { return ofType(slowType, event(n)) }

func slowSubscription(handlers ...events.Registration) events.Subscription {
	s := leasedSubscription(time.Hour, handlers...) // completions may wait for a lock for as long
	s.EventType, s.Channel = slowType, events.ChannelName(pgtest.Generation, "slow")
	return s
}

// A class with a backlog of slow work delays no other class in the same process, with only the connections that its
// consumers need: executions, completions and row-locked handlers all wait.
func aSlowClassDelaysNoOther(b *bundle) {
	const backlog, completes, quick = 60, 40, 50 // the first events reach their completions
	holder := b.lockContended(completes)
	executing, handling := newGate(), newGate()
	b.Cleanup(func() { executing.release(); handling.release() })
	leasedSlow := slowSubscription(executor("platform.slow",
		func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			if payloadN(e) >= completes {
				if err := executing.wait(ctx); err != nil {
					return nil, err
				}
			}
			return func(ctx context.Context, tx events.Tx) error {
				if err := updateContended(ctx, tx, e); err != nil {
					return err
				}
				return writeEffect("platform.slow")(ctx, tx, e)
			}, nil
		}))
	leasedSlow.Concurrency = backlog
	fastRetry := subscription(effectHandler("platform.quick"))
	rowLockedSlow := subscription(handler("worlds.row_locked",
		func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if err := handling.wait(ctx); err != nil {
				return err
			}
			return writeEffect("worlds.row_locked")(ctx, tx, e)
		}))
	rowLockedSlow.EventType, rowLockedSlow.Channel = rowLockedSlowType, leasedSlow.Channel
	connections := worker.Connections(fastRetry) + worker.Connections(leasedSlow) + worker.Connections(rowLockedSlow)
	b.poolURL += fmt.Sprintf("&pool_max_conns=%d", connections)
	l := b.newWorker(noPoll, fastRetry)
	must(b.T, l.Listen(b.ctx, leasedSlow))
	must(b.T, l.Listen(b.ctx, rowLockedSlow))
	l.start()
	var all []events.Envelope
	for n := range backlog {
		all = append(all, slow(n), ofType(rowLockedSlowType, event(n)))
	}
	b.publish(all...)
	executing.awaitAll(b.T, backlog-completes)
	handling.awaitAll(b.T, rowLockedSlow.WithDefaults().Concurrency)
	b.eventually("waiting completions and row-locked handlers", func() bool {
		return one[int](b, `select count(*) from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and a.datname = current_database()`) == 4
	})
	b.publishMany(quick)
	l.awaitDelivered(quick) // while all slow events wait
	b.wantEffects(map[string]int{"platform.quick": quick})
	b.rollback(holder)
	executing.release()
	handling.release()
	l.awaitDelivered(len(all))
	b.wantEffects(map[string]int{"platform.quick": quick, "platform.slow": backlog, "worlds.row_locked": backlog})
}
