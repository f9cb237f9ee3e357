//go:build heavy

package integration_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
)

// Half a million rows are swept, without a pause, while events are published and handled: nobody waits for it, and no event is
// lost, handled twice or swept.
func TestHalfAMillionRowsAreSweptBesideLiveTraffic(t *testing.T) {
	b := setupAlone(t, 5*time.Minute)
	const rows = 500_000
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, status,
			occurred_at, delivered_at, deleted_at)
		select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"n": 1}', i::text, 'delivered', t, t,
			case when i <= $1 / 2 then clock_timestamp() - interval '8 days' end
		from (select i, clock_timestamp() - interval '60 days' as t from generate_series(1, $1::int) i) s`, rows)
	b.exec("alter table core.outbox enable trigger outbox_notify")
	l := b.listen(time.Second, subscription(leaving("platform.one")))

	const producers = 3
	over := make(chan struct{})
	var published sync.WaitGroup
	took := make([][]time.Duration, producers)
	for p := range producers {
		published.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				began := time.Now()
				b.publish(event(n))
				took[p] = append(took[p], time.Since(began))
			}
		})
	}
	began := time.Now()
	store := retentionpg.New(b.pool, "spectral_worker")
	run := uuid.New()
	swept, longest := int64(0), time.Duration(0)
	for more := true; more; {
		batch := time.Now()
		counts, err := store.Sweep(b.ctx, retention.Batch{Run: run, By: "test", MaxRows: retention.DefaultBatchRows, MaxSeconds: 1})
		if err != nil && !errors.Is(err, retention.ErrNotLeading) {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(batch))
		more = false
		for _, c := range counts {
			swept += c.Rows
			more = more || c.More
		}
	}
	sweeping := time.Since(began)
	close(over)
	published.Wait()
	all := slices.Concat(took...)
	l.delivered(len(all))
	b.wantEffects(map[string]int{"platform.one": len(all)})
	if n := one[int](b, "select count(*)::int from core.outbox where deleted_at is null"); n != len(all) {
		t.Errorf("%d events are not tombstoned, want the %d that were published", n, len(all))
	}
	if swept != rows {
		t.Errorf("%d rows are swept, want %d", swept, rows)
	}
	slices.Sort(all)
	t.Logf("%d rows in %s, the longest batch %s; %d events published beside it, each in %s, 1 of 100 in more than %s, the slowest in %s",
		swept, sweeping, longest, len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
	// nothing like the seconds that waiting for the sweep would take
	if slowest := all[len(all)-1]; slowest > 5*time.Second {
		t.Errorf("a producer waited %s beside a sweep", slowest)
	}
}
