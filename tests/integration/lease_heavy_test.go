//go:build heavy

package integration_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/tests/pgtest"
)

// One that goes on after its timeout is left behind, and its place is free again.
func TestLeasedWorkThatIgnoresItsContextIsAbandoned(t *testing.T) {
	b := setup(t)
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	heedless := executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if payloadN(e) == 13 {
			<-forever
		}
		return completion(worker1, e), nil
	})
	heedless.Timeout, heedless.Retry = 100*time.Millisecond, &events.RetryPolicy{Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	s := leasing(time.Minute, heedless)
	s.Concurrency = 1
	l := b.listen(noPoll, s)
	bad, good := event(13), event(1)
	b.publish(bad, good)
	var outcomes []dispatch.Outcome
	for range 2 {
		outcomes = append(outcomes, l.next().Outcome)
	}
	if fmt.Sprint(outcomes) != "[failed delivered]" {
		t.Fatal(outcomes)
	}
	if r := b.wantRow(bad.EventID, "failed", 1); r.Failures[worker1].Class != "TimeoutError" {
		t.Fatalf("%+v", r)
	}
}

// A claim that ends because of its size is not taken for the end of what there is.
func TestLargeEventsFillEveryPlace(t *testing.T) {
	b := setup(t)
	g := b.newGate()
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 20
	l := b.listen(noPoll, s)
	var all []events.Envelope
	for range 20 {
		e := event(1)
		e.Payload = []byte(`{"n": 1, "large": "` + strings.Repeat("x", 1_000_000) + `"}`)
		all = append(all, e)
	}
	b.publish(all...)
	g.awaitAll(t, len(all))
	g.letOn()
	l.delivered(len(all))
}

// The server has the COMMIT, which ignores every cancellation, and its reply was lost.
func TestStoppingReleasesNothingThatMayBeCommitted(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	b.exec(`create function public.wait() returns trigger language plpgsql as $$ begin
			loop
				begin
					perform pg_advisory_xact_lock_shared(7);
					return null;
				exception when query_canceled or lock_not_available then null; -- as a COMMIT that waits for a standby
				end;
			end loop;
		end $$;
		create constraint trigger waits after insert on platform.effects deferrable initially deferred for each row execute function public.wait()`)
	holder := b.conn()
	_, err := holder.Exec(b.ctx, "select pg_advisory_lock(7)")
	must(t, err)
	l := b.newWorker(noPoll, pgtest.Generation, leasing(time.Minute, completing(worker1)))
	l.start()
	e := event(1)
	b.publish(e)
	b.eventually("the COMMIT waits", func() bool {
		return one[bool](b, `select exists (select from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and l.locktype = 'advisory' and a.datname = current_database() and a.query ~* '^commit')`)
	})
	b.sockets.cut()
	l.stopNow()
	b.wantRow(e.EventID, "in_flight", 1)
	_, err = holder.Exec(b.ctx, "select pg_advisory_unlock(7)")
	must(t, err)
	b.eventually("it is committed", func() bool { return b.row(e.EventID).Status == "delivered" })
	b.wantEffects(map[string]int{worker1: 1})
}

func TestOneResultThatBlocksCostsItsNeighboursNothing(t *testing.T) {
	costNothing(setup(t), badResults[2:])
}
