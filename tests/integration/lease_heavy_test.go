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
)

// After its timeout the runner is free for other events.
func TestLeasedWorkThatIgnoresItsContextIsAbandoned(t *testing.T) {
	b := setup(t)
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	stuck := executor(executor1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if payloadN(e) == 13 {
			<-forever
		}
		return effectCompletion(executor1, e), nil
	})
	stuck.Timeout, stuck.Retry = 100*time.Millisecond,
		&events.RetryPolicy{Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	s := leasedSubscription(time.Minute, stuck)
	s.Concurrency = 1
	l := b.startWorker(noPoll, s)
	slow, fast := event(13), event(1)
	b.publish(slow, fast)
	var outcomes []dispatch.Outcome
	for range 2 {
		outcomes = append(outcomes, l.nextSettlement().Outcome)
	}
	if fmt.Sprint(outcomes) != "[failed delivered]" {
		t.Fatal(outcomes)
	}
	if r := b.wantRow(slow.EventID, "failed", 1); r.Failures[executor1].Class != "TimeoutError" {
		t.Fatalf("%+v", r)
	}
}

// A claim that ends because of its size does not count as the last one.
func TestLargeEventsUseEveryRunner(t *testing.T) {
	b := setup(t)
	g := b.newGate()
	s := leasedSubscription(time.Minute, gatedExecutor(executor1, g))
	s.Concurrency = 20
	l := b.startWorker(noPoll, s)
	var all []events.Envelope
	for range 20 {
		e := event(1)
		e.Payload = []byte(`{"n": 1, "large": "` + strings.Repeat("x", 1_000_000) + `"}`)
		all = append(all, e)
	}
	b.publish(all...)
	g.awaitAll(t, len(all))
	g.release()
	l.awaitDelivered(len(all))
}

// The server executes a COMMIT that no cancellation ends, and its reply is lost.
func TestStopReleasesNoRowWhoseCommitMayTakeEffect(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	b.exec(`create function public.wait() returns trigger language plpgsql as $$ begin
			loop
				begin
					perform pg_advisory_xact_lock_shared(7);
					return null;
				exception when query_canceled or lock_not_available then null; -- like a COMMIT that waits for a standby
				end;
			end loop;
		end $$;
		create constraint trigger waits after insert on platform.effects deferrable initially deferred
			for each row execute function public.wait()`)
	holder := b.conn()
	_, err := holder.Exec(b.ctx, "select pg_advisory_lock(7)")
	must(t, err)
	l := b.newWorker(noPoll, leasedSubscription(time.Minute, effectExecutor(executor1)))
	l.start()
	e := event(1)
	b.publish(e)
	b.eventually("the COMMIT waits", func() bool {
		return one[bool](b, `select exists (select from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and l.locktype = 'advisory' and a.datname = current_database() and a.query ~* '^commit')`)
	})
	b.sockets.closeAll()
	l.stopWithoutGrace()
	b.wantRow(e.EventID, "in_flight", 1)
	_, err = holder.Exec(b.ctx, "select pg_advisory_unlock(7)")
	must(t, err)
	b.eventually("the commit", func() bool { return b.row(e.EventID).Status == "delivered" })
	b.wantEffects(map[string]int{executor1: 1})
}

func TestBadResultDoesNotAffectOthers(t *testing.T) {
	verifyBadResults(setup(t), badResults[2:])
}
