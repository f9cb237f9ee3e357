package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
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

// Leased work has no transaction that could wait for a lock.
func TestATimeoutOfLeasedWorkDoesNotMentionLocks(t *testing.T) {
	t.Parallel()
	e := &execution{consumer: &dispatch.Consumer{Telemetry: telemetry.None.Consumer("", nil)}, lease: &lease{}}
	r := events.Registration{Name: "platform.worker", Timeout: time.Millisecond, Executor: events.ExecutorFunc(
		func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})}
	_, err := e.execute(t.Context(), r)
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "lock") ||
		!strings.Contains(err.Error(), "not done within its timeout of 1ms") {
		t.Errorf("its failure is %v", err)
	}
}
