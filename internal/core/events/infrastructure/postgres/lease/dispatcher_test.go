package lease

import (
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Rows with crashes have every second turn, even with one place, and a process runs one of them at a time.
func TestLeasedClaimsTakeTurns(t *testing.T) {
	t.Parallel()
	d := newDispatcher(&dispatch.Consumer{
		Subscription: events.Subscription{Concurrency: 1, BatchSize: 1}, Journal: &journal.Journal{},
	})
	s := d.consumer
	for n := range 6 {
		s.Again, s.Crashed = true, true // there is more of both
		limit, crashed := d.next(t.Context())
		if limit != 1 || crashed != (n%2 == 0) {
			t.Fatalf("claim %d takes %d crashed %t", n, limit, crashed)
		}
		if crashed {
			d.consumer.Journal.CrashSlot.Release()
		}
	}
	s.Again, s.Crashed = false, true
	if _, crashed := d.next(t.Context()); !crashed {
		t.Fatal("with nothing else to claim there are no turns")
	}
	s.Crashed = true
	if limit, _ := d.next(t.Context()); limit != 0 {
		t.Fatal("two rows with crashes run at once")
	}
	s.Stopped = true
	d.consumer.Journal.CrashSlot.Release() // wakes it
	if limit, _ := d.next(t.Context()); limit != 0 {
		t.Fatal("halted, it goes on claiming")
	}
}

func TestSettlingEndsBeforeLeasesMustBeRenewed(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{events.MinLease, time.Second, 30 * time.Second, events.DefaultLease,
		events.MaxLease} {
		c := newCompleter(&dispatch.Consumer{Subscription: events.Subscription{Lease: lease}})
		first, later := c.limit(1), c.limit(2)
		if first > pgtx.QuickSettle || first > later || later > pgtx.MaxSettle || later >= lease/3 {
			t.Errorf("lease of %s: %s, then %s", lease, first, later)
		}
	}
}
