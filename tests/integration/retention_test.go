package integration_test

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
)

// Of many workers' sweepers one makes the sweep.
func TestManySweepersMakeOneSweep(t *testing.T) {
	b := setup(t)
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, status,
			occurred_at, delivered_at)
		select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', gen_random_uuid()::text, 'delivered', t, t
		from (select clock_timestamp() - interval '50 days' as t from generate_series(1, 100)) i`)
	for range 4 {
		sweeper, err := retention.NewSweeper(retentionpg.New(b.pool, "spectral_worker"), retention.Config{
			Pause: time.Millisecond, PageRows: 5, FirstRun: time.Millisecond, Steps: retention.Steps(),
			Log: slog.New(slog.DiscardHandler), NewID: uuid.NewV7, Now: time.Now, Random: rand.Float64,
		})
		must(t, err)
		must(t, sweeper.Start(b.ctx))
		b.Cleanup(func() { must(t, sweeper.Stop(b.ctx)) })
	}
	b.eventually("all is swept", func() bool {
		return one[int](b, "select count(*)::int from core.outbox where deleted_at is not null") == 100
	})
	if n := one[int](b, "select count(*)::int from core.operator_actions"); n != 0 {
		t.Errorf("%d actions of operators are recorded", n)
	}
}

// What has been handled is remembered for as long as its event can come back, through a real worker: an event that was paused for
// longer than keys are kept, after one of its two handlers, runs the other one alone.
func TestAPausedEventIsNotHandledTwice(t *testing.T) {
	b := setup(t)
	b.publish(event(1))
	b.exec(`insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select 'platform.one', idempotency_key, id, event_type, content_class from core.outbox`)
	age := func(days int) {
		b.exec("update core.outbox set occurred_at = occurred_at - make_interval(days => $1), created_at = created_at - make_interval(days => $1), deleted_at = deleted_at - make_interval(days => $1)", days)
		b.exec("update core.event_handled set handled_at = handled_at - make_interval(days => $1), deleted_at = deleted_at - make_interval(days => $1)", days)
	}
	store := retentionpg.New(b.pool, "spectral_worker")
	for range 10 {
		age(10)
		counts, err := retention.Sweep(b.ctx, store, retention.Options{
			Steps: retention.Steps(), Run: uuid.New(), PageRows: 100, Pause: func() time.Duration { return 0 },
		})
		must(t, err)
		if counts[0].More {
			t.Fatalf("swept %+v", counts)
		}
	}
	l := b.listen(noPoll, subscription(leaving("platform.one"), leaving("worlds.two")))
	l.delivered(1)
	b.wantEffects(map[string]int{"worlds.two": 1})
}
