package integration_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// stopNow stops with its grace over, and fails the test if what became of the events was not all written.
func (l *listening) stopNow() {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- l.Stop(ctx) }()
	if err := within(l.T, stopped); err == nil || strings.Contains(err.Error(), "could not all be written") {
		l.Errorf("it stopped with: %v", err)
	}
}

// wantGivenBack wants n events as if they had never been leased.
func (b *bundle) wantGivenBack(n int) {
	b.Helper()
	if given := one[int](b, `select count(*) from core.outbox where status = 'pending' and attempts = 0 and crashes = 0
		and claim_token is null and handler_failures = '{}' and available_at <= clock_timestamp()`); given != n {
		b.Errorf("%d of %d are given back", given, n)
	}
}

// A completion that waits for a key that somebody else holds is given back when its worker stops.
func TestStoppingGivesBackWhatWaitsForAKey(t *testing.T) {
	b := setup(t)
	b.poolURL += "&pool_max_conns=2"
	var all []events.Envelope
	for n := range 8 {
		e := event(n)
		e.IdempotencyKey = fmt.Sprintf("key %d", n)
		all = append(all, e)
	}
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin")
	must(t, err)
	_, err = holder.Exec(b.ctx, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		values ($1, 'worlds:-:key 3', gen_random_uuid(), $2, 'operational')`, worker1, happenedType)
	must(t, err)
	s := leasing(6*time.Second, completing(worker1))
	s.Concurrency = len(all)
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	b.publish(all...)
	l.delivered(len(all) - 1)
	b.eventually("the last waits for its key", b.somebodyWaits)
	l.stopNow()
	b.wantGivenBack(1)
	if s := l.next(); s.Outcome != postgres.Released {
		t.Errorf("it is said that it was %+v", s)
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(t, err)
	next := b.listen(never, leasing(time.Minute, completing(worker1)))
	next.delivered(1)
	b.wantEffects(map[string]int{worker1: len(all)})
}
