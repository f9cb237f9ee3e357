//go:build heavy

package faults_test

import (
	"slices"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
)

// retry is what a worker logged of one failed attempt.
type retry struct {
	at      time.Time
	attempt int
	delay   time.Duration // until the next one; 0 for the last
}

// Twelve workers and one event that always fails: they share one schedule.
func TestOneFailingEventAmongTwelveWorkers(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(12, b.worker, "")
	poison := ledger.Poison + "1"
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 2, Rate: 20, PerTx: 3, Seed: seed(t)})
	l.Publish(t, b.publisher, poison)
	b.eventually("the event has failed", time.Minute, func() bool { return b.card(poison).Status == "failed" })
	load.Stop()
	want := 1 + events.DefaultRetryPolicy.MaxRetries
	l.Verify(t, b.direct(), ledger.Expect{Within: patience, Failed: map[string]ledger.Dead{poison: {Attempts: want}}})

	var all []retry
	collect := func() {
		all = nil
		for _, worker := range running {
			for _, e := range worker.Entries() {
				if m := e.Message(); m != "event will be retried" && m != "event failed" {
					continue
				}
				at, err := time.Parse(time.RFC3339Nano, e["timestamp"].(string))
				must(t, err)
				delay, _ := e["delay_ms"].(float64)
				all = append(all, retry{at, int(e["attempts"].(float64)), time.Duration(delay) * time.Millisecond})
			}
		}
	}
	b.eventually("the workers have logged every attempt", patience, func() bool { collect(); return len(all) >= want })
	slices.SortFunc(all, func(a, b retry) int { return a.at.Compare(b.at) })
	if len(all) != want {
		t.Fatalf("%d attempts in all, want %d: %v", len(all), want, all)
	}
	for i, r := range all {
		if r.attempt != i+1 {
			t.Errorf("attempt %d is counted as %d", i+1, r.attempt)
		}
		if i == 0 {
			continue
		}
		// the workers' clock is the database's here; an entry is written a moment after its commit
		waited := r.at.Sub(all[i-1].at)
		due := all[i-1].delay
		if waited < due-100*time.Millisecond || waited > due+2*time.Second {
			t.Errorf("attempt %d came %s after the one before, want %s", i+1, waited, due)
		}
	}
	t.Log(all)
}
