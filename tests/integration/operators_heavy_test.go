//go:build heavy

package integration_test

import (
	"slices"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/admin"
	"spectral/tests/pgtest"
)

// Two operators replay the same 100,000 events as fast as it goes, while live ones of the same type come all the time: each
// event is replayed and handled once, and live ones are picked up within a second.
func TestTwoOperatorsReplayAHundredThousandEvents(t *testing.T) {
	b := setupAlone(t, 4*patience)
	const failed = 100_000
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, status,
			attempts, last_error, first_failed_at, claimed_at, handler_failures)
		select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"n": 1}', 'k' || i, 'failed', 6, 'HandlerError: a.b: no',
			clock_timestamp(), clock_timestamp(), '{"platform.picking": {"failures": 6, "parked": true}}' from generate_series(1, $1::integer) i`, failed)
	b.exec("vacuum analyze core.outbox")
	p := newPickups()
	l := b.listen(never, p.subscription())
	go func() { // which are more than it keeps
		for {
			select {
			case <-l.settlements:
			case <-b.ctx.Done():
				return
			}
		}
	}()

	// live events, one after the other, each awaited
	quantiles := func(end <-chan struct{}) (n int, p50, p99, longest time.Duration) {
		var all []time.Duration
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for going := true; going || len(all) < 100; {
			e := event(len(all))
			b.publish(e)
			committed := time.Now()
			p.within(t, time.Second, committed, e.EventID.String())
			all = append(all, p.after(committed, e.EventID.String()))
			select {
			case <-end:
				going = false
			default:
			}
			<-tick.C
		}
		slices.Sort(all)
		return len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
	}
	idle := make(chan struct{})
	close(idle)
	_, p50, p99, longest := quantiles(idle)
	t.Logf("pickup beside nothing: p50 %s, p99 %s, longest %s", p50, p99, longest)

	type result struct {
		admin.Acted
		took time.Duration
		err  error
	}
	results := make(chan result, 2)
	operators := []*admin.Admin{b.operator(), b.operator()}
	selections := make([]admin.Selection, len(operators))
	for i, operator := range operators {
		started := time.Now()
		selections[i] = b.failed(operator)
		s := selections[i]
		preview, err := operator.PreviewReplay(b.ctx, s, pgtest.Generation, false)
		must(t, err)
		if s.Len() != failed || len(preview.Handlers) != 1 || preview.Handlers[0].WouldRun != failed {
			t.Fatalf("of %d events the preview says %+v", s.Len(), preview)
		}
		t.Logf("%d events selected and previewed in %s", failed, time.Since(started))
	}
	for i, operator := range operators {
		go func() {
			started := time.Now()
			acted, err := operator.Replay(b.ctx, selections[i], pgtest.Generation, "anna", false, admin.Pace{Rate: -1})
			results <- result{acted, time.Since(started), err}
		}()
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		done := 0
		for range 2 {
			r := <-results
			if r.err != nil {
				t.Error(r.err)
			}
			done += r.Done
			t.Logf("one of the two replayed %d and left out %d in %s", r.Done, r.LeftOut, r.took)
		}
		if done != failed {
			t.Errorf("%d were replayed", done)
		}
	}()
	n, p50, p99, longest := quantiles(over)
	t.Logf("pickup of %d beside two operators: p50 %s, p99 %s, longest %s", n, p50, p99, longest)
	b.eventually("all are delivered", func() bool {
		return one[bool](b, "select not exists (select from core.outbox where status <> 'delivered')")
	})
	if wrong := one[int](b, "select count(*) from core.outbox where idempotency_key like 'k%' and jsonb_array_length(failure_history) <> 1"); wrong != 0 {
		t.Errorf("%d were not replayed exactly once", wrong)
	}
	if handled := one[int](b, "select count(*) from core.event_handled where idempotency_key like 'k%'"); handled != failed {
		t.Errorf("%d were handled", handled)
	}
	if noted := one[int](b, "select sum(cardinality(event_ids))::int from core.operator_actions"); noted != failed {
		t.Errorf("%d are noted", noted)
	}
}
