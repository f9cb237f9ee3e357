//go:build heavy

package integration_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// Many rows of both tables are swept, without a pause, while events are published, claimed and handled: nobody waits for it,
// and no event is lost, handled twice or swept.
func TestManyRowsAreSweptBesideLiveTraffic(t *testing.T) {
	b := setupAlone(t, 5*time.Minute)
	const rows, keys = 200_000, 100_000
	const patience = 2 * time.Second // of whoever publishes or claims
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, status,
			occurred_at, delivered_at, deleted_at)
		select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"n": 1}', i::text, 'delivered', t, t,
			case when i <= $1 / 2 then clock_timestamp() - interval '8 days' end
		from (select i, clock_timestamp() - interval '60 days' as t from generate_series(1, $1::int) i) s`, rows)
	b.exec("alter table core.outbox enable trigger outbox_notify")
	b.exec(`insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class, handled_at, deleted_at)
		select 'platform.old', 'old' || i, gen_random_uuid(), 'worlds.test.happened', 'operational', clock_timestamp() - interval '70 days',
			case when i <= $1 / 2 then clock_timestamp() - interval '8 days' end
		from generate_series(1, $1::int) i`, keys)
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
	var claims []time.Duration
	published.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
			}
			began := time.Now()
			if err := postgres.ActAs(b.ctx, b.pool, "spectral_worker", func(tx pgx.Tx) error {
				_, err := tx.Exec(b.ctx, "select core.outbox_claim($1, $2, 10, '-infinity', gen_random_uuid(), false)", pgtest.Generation, happenedType)
				return err
			}); err != nil {
				t.Error(err)
				return
			}
			claims = append(claims, time.Since(began))
		}
	})
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
	if n := one[int](b, "select count(*)::int from core.event_handled where deleted_at is null"); n != len(all) {
		t.Errorf("%d keys are not tombstoned, want the %d of events that were handled", n, len(all))
	}
	if swept != rows+keys {
		t.Errorf("%d rows are swept, want %d", swept, rows+keys)
	}
	t.Logf("%d rows in %s, the longest batch %s", swept, sweeping, longest)
	for what, took := range map[string][]time.Duration{"publishing": all, "claiming": claims} {
		if len(took) < 100 {
			t.Fatalf("%s: %d times beside the sweep", what, len(took))
		}
		slices.Sort(took)
		slowest := took[len(took)-1]
		t.Logf("%s: %d times, half of them in %s, 1 of 100 in more than %s, the slowest in %s", what, len(took), took[len(took)/2], took[len(took)*99/100], slowest)
		if slowest > patience {
			t.Errorf("%s took %s beside a sweep", what, slowest)
		}
	}
}
