package postgres

import (
	"testing"
	"time"

	"spectral/internal/core/events"
)

func newTestThrottle(batch int) throttle {
	return newThrottle(events.Subscription{BatchSize: batch, Concurrency: 4})
}

func full(t *throttle, took time.Duration, payload int) (limit int) {
	limit, _ = t.next()
	t.adjust(dispatchResult{rows: limit, payload: payload * limit}, limit, took)
	return limit
}

func TestBatchesGrowUnderBacklog(t *testing.T) {
	t.Parallel()
	th := newTestThrottle(10)
	for _, want := range []int{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		if got := full(&th, time.Millisecond, 100); got != want {
			t.Fatalf("batch of %d, want %d", got, want)
		}
	}
	th.adjust(dispatchResult{rows: 999}, 1000, time.Millisecond)
	if got, _ := th.next(); got != 10 {
		t.Fatalf("after the backlog a batch of %d", got)
	}
}

func TestBatchesAreBoundedInTimeAndMemory(t *testing.T) {
	t.Parallel()
	slow, big := newTestThrottle(10), newTestThrottle(10)
	for range 10 {
		limit, _ := slow.next()
		slow.adjust(dispatchResult{rows: limit}, limit, time.Duration(limit)*20*time.Millisecond)
		full(&big, time.Millisecond, 1<<20)
	}
	if got, _ := slow.next(); got != 50 {
		t.Errorf("rows of 20 ms come in batches of %d, want 50", got)
	}
	if got, _ := big.next(); got != 16 {
		t.Errorf("rows of 1 MiB come in batches of %d, want 16", got)
	}
}

func TestFailuresHalveBatchesAndDeadlocksRunners(t *testing.T) {
	t.Parallel()
	th := newTestThrottle(16)
	th.adjust(dispatchResult{rows: 16, undone: true, left: 2}, 16, time.Millisecond)
	if th.size != 8 || th.allowed != 4 {
		t.Fatalf("after a failure batches of %d by %d runners", th.size, th.allowed)
	}
	for range 2 {
		if limit, _ := th.next(); limit != 1 {
			t.Fatalf("rows of an undone batch come in batches of %d", limit)
		}
	}
	for range 5 {
		limit, _ := th.next()
		th.adjust(dispatchResult{rows: limit, undone: true, deadlock: true}, limit, time.Millisecond)
	}
	if th.size != 1 || th.allowed != 1 {
		t.Fatalf("after deadlocks batches of %d by %d runners", th.size, th.allowed)
	}
	for range 20 {
		full(&th, time.Millisecond, 1)
	}
	if th.size != 1000 || th.allowed != 4 {
		t.Fatalf("after 20 good ones batches of %d by %d runners", th.size, th.allowed)
	}
}

func TestABatchOfOneStays(t *testing.T) {
	t.Parallel()
	one := newTestThrottle(1)
	outside := newThrottle(events.Subscription{BatchSize: 10, Concurrency: 1, Primary: events.Registration{ActsOutside: true}})
	for range 5 {
		full(&one, time.Millisecond, 1)
		full(&outside, time.Millisecond, 1)
	}
	if one.size != 1 || outside.size != 1 {
		t.Fatalf("batches of %d and %d", one.size, outside.size)
	}
}

func TestStrictLastsAsLongAsTheRowsLeft(t *testing.T) {
	t.Parallel()
	th := newTestThrottle(10)
	th.adjust(dispatchResult{rows: 1, left: 1, strict: true}, 10, time.Millisecond)
	if limit, strict := th.next(); limit != 1 || !strict {
		t.Fatalf("next %d, strict %t", limit, strict)
	}
	if limit, strict := th.next(); limit != 10 || strict {
		t.Fatalf("then %d, strict %t", limit, strict)
	}
}

// While the database is away one runner is enough to find out when it is back; afterwards they are as many as
// before, whatever the size of a batch.
func TestOneRunnerOutlastsAnInterruption(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 10} {
		th := newTestThrottle(batch)
		th.interrupted()
		if th.allowed != 1 {
			t.Fatalf("%d runners go on", th.allowed)
		}
		for range 10 {
			full(&th, time.Millisecond, 1)
		}
		if th.allowed != 4 {
			t.Errorf("in batches of %d: %d runners afterwards", batch, th.allowed)
		}
	}
}
