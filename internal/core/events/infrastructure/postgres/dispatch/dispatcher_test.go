package dispatch

import (
	"context"
	"testing"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/journal"
)

func newTestDispatcher() *dispatcher {
	return newDispatcher(&Consumer{
		Journal: &journal.Journal{}, Subscription: events.Subscription{BatchSize: 10, Concurrency: 4},
	})
}

// A poll may find crashed rows while a claim is on its way. If that claim comes back empty, they are still claimed.
func TestCrashedRowsFoundDuringAClaimAreClaimed(t *testing.T) {
	t.Parallel()
	d := newTestDispatcher()
	d.runners = d.sizer.allowed // wake starts none
	entry := &journal.Entry{}
	d.wake(t.Context(), true)
	first := d.next(t.Context(), entry, claim{}, false)
	if !first.crashed {
		t.Fatalf("%+v", first)
	}
	d.wake(t.Context(), true)
	d.consumer.Journal.CrashSlot.Release()
	d.adjust(first, claimResult{}, 0)
	if next := d.next(t.Context(), entry, claim{}, true); !next.crashed {
		t.Fatalf("%+v", next)
	}
}

// Crashed rows have every second turn, so that one runner serves both.
func TestCrashedRowsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	d := newTestDispatcher()
	d.runners, d.consumer.Crashed = 1, true
	ctx, entry, last := context.Background(), &journal.Entry{}, claim{}
	for n := range 6 {
		next := d.next(ctx, entry, last, false)
		if next.crashed != (n%2 == 0) {
			t.Fatalf("claim %d: %+v", n, next)
		}
		if next.crashed {
			d.consumer.Journal.CrashSlot.Release()
		}
		d.adjust(next, claimResult{rows: next.limit}, 1)
		last = next
	}
}
