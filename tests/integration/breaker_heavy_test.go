//go:build heavy

package integration_test

import (
	"context"
	"testing"
	"time"

	"spectral/internal/core/events"
)

// A service that is down for a while, with thousands of events for it: none fails, it is hardly called, and all are
// handled soon after it returns.
func TestAServiceIsDownUnderLoad(t *testing.T) {
	b := setup(t)
	const n = 4_000 // 50,000 take 64 to 81 s after it returned
	var mail dependency
	mail.down.Store(true)
	r := handler("platform.mailer", func(context.Context, events.Tx, events.Envelope) error { return mail.call() })
	r.ActsOutside, r.OnReplay, r.Retry = "sends mail", events.ReplaySkip, nil
	s := subscription(effectHandler("worlds.two"), r)
	s.Concurrency = 8
	l := b.startWorker(noPoll, s)
	go func() { // they are too many to wait for one by one
		for range l.settlements {
			continue
		}
	}()
	for first := 0; first < n; first += 1000 {
		b.publish(numbered(first, 1000)...)
	}
	b.eventually("all wait, or are retried", func() bool { return b.waiting() > n-30 })
	b.eventually("it was probed three times", func() bool {
		return one[int](b, "select coalesce(max(probes), 0)::int from core.breakers") >= 3
	})
	calls, moved := mail.calls.Load(), one[int](b, "select count(*)::int from core.outbox where attempts > 1")
	if calls > 60 || moved > 20 {
		b.Errorf("%d calls while it was down, %d events were tried again", calls, moved)
	}
	mail.down.Store(false)
	returned := time.Now()
	ctx, cancel := context.WithTimeout(b.ctx, 4*testTimeout)
	defer cancel()
	for one[int](b, "select count(*)::int from core.outbox where status <> 'delivered'") > 0 {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			b.Fatal("they are not delivered")
		}
	}
	t.Logf("%d calls while it was down; all delivered %s after it returned", calls,
		time.Since(returned).Round(time.Second))
	if failed := one[int](b, "select count(*)::int from core.failed_attempts where cycle > 0"); failed != 0 {
		b.Errorf("%d attempts of another cycle", failed)
	}
	b.wantEffects(map[string]int{"worlds.two": n})
}
