package dispatch

import (
	"context"
	"testing"
	"time"

	"spectral/internal/core/events"
)

func newTestSizer(batch int) batchSizer {
	return newBatchSizer(events.Subscription{BatchSize: batch, Concurrency: 4})
}

func full(b *batchSizer, took time.Duration, payload int) (limit int) {
	limit = b.next().limit
	b.adjust(claimResult{rows: limit, payload: payload * limit}, limit, took)
	return limit
}

func TestBatchesGrowUnderBacklog(t *testing.T) {
	t.Parallel()
	sizer := newTestSizer(10)
	for _, want := range []int{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		if got := full(&sizer, time.Millisecond, 100); got != want {
			t.Fatalf("batch of %d, want %d", got, want)
		}
	}
	sizer.adjust(claimResult{rows: 999}, 1000, time.Millisecond)
	if got := sizer.next().limit; got != 10 {
		t.Fatalf("after the backlog a batch of %d", got)
	}
}

func TestBatchesAreBoundedInTimeAndMemory(t *testing.T) {
	t.Parallel()
	slow, big := newTestSizer(10), newTestSizer(10)
	for range 10 {
		limit := slow.next().limit
		slow.adjust(claimResult{rows: limit}, limit, time.Duration(limit)*20*time.Millisecond)
		full(&big, time.Millisecond, 1<<20)
	}
	if got := slow.next().limit; got != 50 {
		t.Errorf("rows of 20 ms come in batches of %d, want 50", got)
	}
	if got := big.next().limit; got != 16 {
		t.Errorf("rows of 1 MiB come in batches of %d, want 16", got)
	}
}

func TestFailuresHalveBatchesAndDeadlocksRunners(t *testing.T) {
	t.Parallel()
	sizer := newTestSizer(16)
	sizer.adjust(claimResult{rows: 16, undone: true, left: 2}, 16, time.Millisecond)
	if sizer.size != 8 || sizer.allowed != 4 {
		t.Fatalf("after a failure batches of %d by %d runners", sizer.size, sizer.allowed)
	}
	for range 2 {
		if limit := sizer.next().limit; limit != 1 {
			t.Fatalf("rows of an undone batch come in batches of %d", limit)
		}
	}
	for range 5 {
		limit := sizer.next().limit
		sizer.adjust(claimResult{rows: limit, undone: true, deadlock: true}, limit, time.Millisecond)
	}
	if sizer.size != 1 || sizer.allowed != 1 {
		t.Fatalf("after deadlocks batches of %d by %d runners", sizer.size, sizer.allowed)
	}
	for range 20 {
		full(&sizer, time.Millisecond, 1)
	}
	if sizer.size != 1000 || sizer.allowed != 4 {
		t.Fatalf("after 20 good ones batches of %d by %d runners", sizer.size, sizer.allowed)
	}
}

func TestABatchOfOneStays(t *testing.T) {
	t.Parallel()
	one := newTestSizer(1)
	outside := newBatchSizer(events.Subscription{
		BatchSize: 10, Concurrency: 1, Primary: events.Registration{ActsOutside: "sends mail"},
	})
	for range 5 {
		full(&one, time.Millisecond, 1)
		full(&outside, time.Millisecond, 1)
	}
	if one.size != 1 || outside.size != 1 {
		t.Fatalf("batches of %d and %d", one.size, outside.size)
	}
}

// A row that cannot be settled would be the first of every claim.
func TestOthersHaveTheirTurnAfterARowThatCouldNotBeSettled(t *testing.T) {
	t.Parallel()
	sizer := newTestSizer(1)
	for n := range 3 {
		if next, want := sizer.next(), (claim{limit: 1 + n, pass: n, here: n > 0}); next != want {
			t.Fatalf("%+v, want %+v", next, want)
		}
		sizer.interrupted(ErrSettle)
	}
	sizer.adjust(claimResult{rows: 4, left: 3}, 4, time.Millisecond)
	for n := range 5 { // and a batch of one stays
		if next, want := sizer.next(), (claim{limit: 1, here: n < 3}); next != want {
			t.Fatalf("%+v, want %+v", next, want)
		}
	}
}

// Rows that could not be marked as sent are handled by the next claim, and rows that were sent and stay by one for them
// alone.
func TestTheClaimAfterASendTakesWhatStays(t *testing.T) {
	t.Parallel()
	sizer, due := newTestSizer(10), time.Unix(1, 0)
	for _, c := range []struct {
		result claimResult
		want   claim
	}{
		{claimResult{rows: 5, keptBy: due}, claim{limit: 10, keptBy: due}}, {claimResult{rows: 5}, claim{limit: 10}},
		{claimResult{rows: 5, here: true}, claim{limit: 10, here: true}}, {claimResult{rows: 5}, claim{limit: 10}},
	} {
		sizer.adjust(c.result, 10, time.Millisecond)
		if next := sizer.next(); next != c.want {
			t.Errorf("%+v, want %+v", next, c.want)
		}
	}
}

func TestRowsThatWereOnlyLeftAreClaimedOneByOne(t *testing.T) {
	t.Parallel()
	sizer := newTestSizer(10)
	sizer.adjust(claimResult{rows: 10, left: 10}, 10, time.Millisecond)
	for n := range 11 {
		if next, want := sizer.next().limit, map[bool]int{true: 1, false: 10}[n < 10]; next != want {
			t.Fatalf("claim %d of %d rows, want %d", n, next, want)
		}
	}
}

func TestDeferredChecksLastUntilTheRowsLeftHaveRun(t *testing.T) {
	t.Parallel()
	sizer := newTestSizer(10)
	sizer.adjust(claimResult{rows: 1, left: 1, checkDeferred: true}, 10, time.Millisecond)
	for _, want := range []claim{{limit: 1, checkDeferred: true, here: true}, {limit: 10}} {
		if next := sizer.next(); next != want {
			t.Fatalf("%+v, want %+v", next, want)
		}
	}
}

// While the database is away one runner finds out when it is back; afterwards there are as many as before, whatever the
// size of a batch.
func TestOneRunnerOutlastsAnInterruption(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 10} {
		sizer := newTestSizer(batch)
		sizer.interrupted(context.DeadlineExceeded)
		if sizer.allowed != 1 {
			t.Fatalf("%d runners go on", sizer.allowed)
		}
		for range 10 {
			full(&sizer, time.Millisecond, 1)
		}
		if sizer.allowed != 4 {
			t.Errorf("in batches of %d: %d runners afterwards", batch, sizer.allowed)
		}
	}
}

// Rows that failed before run one by one, also while a breaker is open. The rows of an undone batch then need not.
func TestAnOpenBreakerEndsAReRunOnly(t *testing.T) {
	t.Parallel()
	sizer := newTestSizer(10)
	sizer.adjust(claimResult{rows: 10, left: 10, open: true}, 10, time.Millisecond)
	sizer.adjust(claimResult{rows: 1, open: true}, sizer.next().limit, time.Millisecond)
	if limit := sizer.next().limit; limit != 1 {
		t.Errorf("rows that failed before come in claims of %d", limit)
	}
	sizer = newTestSizer(10)
	sizer.adjust(claimResult{rows: 10, left: 10, undone: true}, 10, time.Millisecond)
	sizer.adjust(claimResult{rows: 1, open: true}, sizer.next().limit, time.Millisecond)
	if limit := sizer.next().limit; limit == 1 {
		t.Error("an undone batch is run again one by one to its end")
	}
}
