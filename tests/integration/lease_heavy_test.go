//go:build heavy

package integration_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// One ending that takes all it may, or more, costs those that are settled beside it neither their leases nor another
// execution, whatever it waits for.
func TestOneEndingCostsNoNeighbourItsLease(t *testing.T) {
	const all, slow = 12, 4
	for _, c := range []struct {
		name  string
		hold  string                                      // what somebody does for the time, about its event
		does  func(context.Context, events.Tx, int) error // what its completion does, in its so-manieth call
		fails bool                                        // at first
	}{
		{name: "it takes long", does: func(ctx context.Context, tx events.Tx, _ int) error {
			_, err := tx.Exec(ctx, "select pg_catalog.pg_sleep(2.4)") // of three
			return err
		}},
		{name: "it waits for a lock", fails: true, hold: "update platform.contended set n = n where $1::uuid is not null",
			does: func(ctx context.Context, tx events.Tx, _ int) error {
				_, err := tx.Exec(ctx, "update platform.contended set n = n")
				return err
			}},
		{name: "it does not look at its context", fails: true, does: func(_ context.Context, _ events.Tx, call int) error {
			if call <= 2 { // beside others, and by itself
				<-t.Context().Done()
			}
			return nil
		}},
		{name: "its COMMIT waits", fails: true, hold: "insert into platform.numbers select 4 where $1::uuid is not null",
			does: func(ctx context.Context, tx events.Tx, _ int) error {
				_, err := tx.Exec(ctx, "insert into platform.numbers values (4)")
				return err
			}},
		{name: "its row is locked", hold: "select from core.outbox where id = $1 for update"},
		{name: "its key is held", hold: `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
			select '` + worker1 + `', idempotency_key, id, event_type, content_class from core.outbox where id = $1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setupAlone(t, 4*patience) // leases of seconds
			b.exec("create table platform.contended (n int); insert into platform.contended values (1); grant all on platform.contended to spectral_platform")
			b.exec("create table platform.numbers (n int unique deferrable initially deferred); grant all on platform.numbers to spectral_platform")
			g := newGate()
			t.Cleanup(g.letOn)
			var executed [all]atomic.Int32
			var calls atomic.Int32
			s := leasing(6*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
				executed[payloadN(e)].Add(1)
				return func(ctx context.Context, tx events.Tx) error {
					if payloadN(e) == slow && c.does != nil {
						if err := c.does(ctx, tx, int(calls.Add(1))); err != nil {
							return err
						}
					}
					return effect(worker1)(ctx, tx, e)
				}, g.pass(ctx)
			}))
			s.Concurrency = all
			l := b.listen(time.Second, s)
			published := b.publishMany(all)
			g.awaitAll(t, all)
			holder := pgtest.Conn(t, b.url)
			_, err := holder.Exec(b.ctx, "begin")
			must(t, err)
			if c.hold != "" {
				_, err := holder.Exec(b.ctx, c.hold, published[slow].EventID)
				must(t, err)
			}
			// the next renewals find the rows locked
			b.eventually("the first renewal is near", func() bool {
				return one[bool](b, "select clock_timestamp() > max(claimed_at) + interval '1.8 s' from core.outbox")
			})
			g.letOn()
			delivered, failed := 0, 0
			for delivered+failed < all && (delivered < all-1 || c.hold == "" || c.fails) {
				switch s := l.next(); s.Outcome {
				case postgres.Delivered:
					delivered++
				case postgres.Retried:
					if failed++; payloadN(s.Envelope) != slow {
						t.Errorf("%+v", s)
					}
				default:
					t.Fatalf("%+v", s)
				}
			}
			_, err = holder.Exec(b.ctx, "rollback")
			must(t, err)
			l.delivered(all - delivered)
			b.wantEffects(map[string]int{worker1: all})
			for n := range executed {
				times := 1
				if n == slow && c.fails {
					times = 2
				}
				if n == slow && c.hold != "" && !c.fails {
					continue // its own may be lost: nobody can renew it
				}
				b.wantRow(published[n].EventID, "delivered", times)
				if ran := int(executed[n].Load()); ran != times {
					t.Errorf("event %d was executed %d times, want %d", n, ran, times)
				}
				if crashes := one[int](b, "select crashes from core.outbox where id = $1", published[n].EventID); crashes > 0 {
					t.Errorf("the lease of event %d ran out", n)
				}
			}
			if class := b.row(published[slow].EventID).Failures[worker1].Class; c.fails && class != "TimeoutError" {
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
