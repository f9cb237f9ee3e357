package postgres

import (
	"context"
	"testing"
)

// What a look finds while a claim is on its way must not be lost to that claim coming back empty.
func TestCrashedRowsFoundDuringAClaimAreClaimed(t *testing.T) {
	t.Parallel()
	c := &rowLocked{consumer: &consumer{journal: &journal{}}, throttle: newTestThrottle(10)}
	c.runners = c.throttle.allowed // wake is to start none
	note := &entry{}
	c.wake(t.Context(), true)
	first := c.begin(t.Context(), note, claim{}, false)
	if !first.crashed {
		t.Fatalf("%+v", first)
	}
	c.wake(t.Context(), true)
	c.journal.turn.giveBack()
	c.adjust(first, dispatchResult{}, 0)
	if next := c.begin(t.Context(), note, claim{}, true); !next.crashed {
		t.Fatalf("%+v", next)
	}
}

// Whoever does not get the turn is woken when it is given back, and does not wait.
func TestTheTurnWakesThoseWithoutIt(t *testing.T) {
	t.Parallel()
	var turn turn
	woken := 0
	first, second := &consumer{}, &consumer{}
	wake := func() { woken++ }
	if !turn.take(first, wake) || turn.take(second, wake) || turn.take(second, wake) {
		t.Fatal("not one at a time")
	}
	turn.giveBack()
	if woken != 1 || !turn.take(second, wake) {
		t.Fatalf("%d woken", woken)
	}
}

// Crashed rows have every second turn, so that one runner serves both.
func TestCrashedRowsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	c := &rowLocked{consumer: &consumer{journal: &journal{}}, waking: waking{crashed: true}, throttle: newTestThrottle(10), runners: 1}
	ctx, note, last := context.Background(), &entry{}, claim{}
	for n := range 6 {
		next := c.begin(ctx, note, last, false)
		if next.crashed != (n%2 == 0) {
			t.Fatalf("claim %d: %+v", n, next)
		}
		if next.crashed {
			c.journal.turn.giveBack()
		}
		c.adjust(next, dispatchResult{rows: next.limit}, 1)
		last = next
	}
}
