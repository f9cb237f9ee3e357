//go:build heavy

package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// One completion that takes all it may, or that waits for a lock until it is cut off, costs those that are settled
// beside it neither their leases nor another execution; and is what failed.
func TestASlowCompletionCostsNoNeighbourItsLease(t *testing.T) {
	const all, slow = 12, 4 // those behind it are worst off
	for _, waits := range []bool{false, true} {
		t.Run(map[bool]string{false: "it takes long", true: "it waits for a lock"}[waits], func(t *testing.T) {
			b := setupAlone(t, 4*patience) // leases of seconds
			holder := b.hold(slow + 1)
			_, err := holder.Exec(b.ctx, "rollback")
			must(t, err)
			_, err = holder.Exec(b.ctx, fmt.Sprintf("begin; select from platform.contended where n = %d for update", slow))
			must(t, err)
			g := newGate()
			t.Cleanup(g.letOn)
			var mu sync.Mutex
			executed := make(map[uuid.UUID]int)
			s := leasing(6*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
				mu.Lock()
				executed[e.EventID]++
				mu.Unlock()
				return func(ctx context.Context, tx events.Tx) (err error) {
					switch {
					case payloadN(e) != slow:
					case waits:
						err = contend(ctx, tx, e)
					default:
						_, err = tx.Exec(ctx, "select pg_catalog.pg_sleep(2.4)") // of three
					}
					if err != nil {
						return err
					}
					return effect(worker1)(ctx, tx, e)
				}, g.pass(ctx)
			}))
			s.Concurrency = all
			l := b.listen(time.Second, s)
			published := b.publishMany(all)
			g.awaitAll(t, all)
			// the next renewals find the rows locked
			b.eventually("the first renewal is near", func() bool {
				return one[bool](b, "select clock_timestamp() > max(claimed_at) + interval '1.8 s' from core.outbox")
			})
			g.letOn()
			want := all
			if waits {
				for s := l.next(); s.Outcome != postgres.Retried; s = l.next() {
					want--
				}
				_, err := holder.Exec(b.ctx, "rollback")
				must(t, err)
			}
			l.delivered(want)
			b.wantEffects(map[string]int{worker1: all})
			at := slices.IndexFunc(published, func(e events.Envelope) bool { return payloadN(e) == slow })
			for i, e := range published {
				times := 1
				if waits && i == at {
					times = 2
				}
				b.wantRow(e.EventID, "delivered", times)
				if mu.Lock(); executed[e.EventID] != times {
					t.Errorf("event %d was executed %d times, want %d", i, executed[e.EventID], times)
				}
				mu.Unlock()
			}
			if n := one[int](b, "select count(*) from core.outbox where crashes > 0"); n > 0 {
				t.Errorf("%d leases ran out", n)
			}
			if class := b.row(published[at].EventID).Failures[worker1].Class; waits && class != "TimeoutError" {
				t.Errorf("its failure is %q", class)
			}
		})
	}
}

// A row that somebody has locked whenever its lease was to be renewed is renewed soon after.
func TestALockedRowIsRenewedSoon(t *testing.T) {
	b := setupAlone(t, 4*patience)
	g := newGate()
	t.Cleanup(g.letOn)
	l := b.listen(time.Second, leasing(6*time.Second, gated(worker1, g)))
	e := event(1)
	b.publish(e)
	g.awaitEntered(t)
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; select from core.outbox for update")
	must(t, err)
	claimed := one[time.Time](b, "select claimed_at from core.outbox")
	after := func(lease string) func() bool {
		return func() bool {
			return one[bool](b, "select clock_timestamp() > $1::timestamptz + $2::text::interval", claimed, lease)
		}
	}
	b.eventually("two renewals came to nothing", after("4.2 s"))
	if renewed := one[time.Time](b, "select claimed_at from core.outbox"); !renewed.Equal(claimed) {
		t.Fatal("it was renewed while it was locked")
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(t, err)
	b.eventually("its lease would be over", after("6.5 s"))
	g.letOn()
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 1)
	if len(g.entered) > 0 {
		t.Error("it was executed again")
	}
}
