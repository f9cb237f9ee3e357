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
	"spectral/internal/core/events/infrastructure/postgres/notify"
)

func TestHeldDedupKeyDelaysOnlyItsOwnRow(t *testing.T) {
	b := setup(t)
	held, free := event(1), event(2)
	holder := b.beginTx(`insert into core.event_handled
			(handler_name, idempotency_key, event_id, event_type, content_class)
		values ('platform.one', $1::text, gen_random_uuid(), 'worlds.test.happened', 'operational')`, held.EventID)
	b.publish(held, free)
	h := effectHandler("platform.one")
	h.Timeout = time.Second
	l := b.startWorker(noPoll, subscription(h))
	for s := l.nextSettlement(); s.Envelope.EventID != free.EventID; s = l.nextSettlement() {
		if s.Outcome != dispatch.Retried || s.Attempts != 0 {
			t.Fatalf("waiting for a key cost an attempt: %+v", s)
		}
	}
	b.wantRow(free.EventID, "delivered", 1)
	b.rollback(holder)
	l.awaitOutcome(dispatch.Delivered)
	b.wantRow(held.EventID, "delivered", 1)
}

// The database may have been down for all workers, so the others get time to register again.
func TestWorkerDoesNotReapRightAfterItLostItsSession(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	l.awaitDelivered(1)
	b.killNotifier()
	other := event(2)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.deadWorker(other.EventID) // first, since the worker may poll at any time
	b.exec("update core.claim_journal set claimed_at = claimed_at + interval '1 minute' where ids = array[$1::uuid]",
		other.EventID)
	b.publish(other)
	b.exec("alter table core.outbox enable trigger outbox_notify")
	l.wantState(testTimeout, notify.Listening, "")
	b.eventually("the worker marks the other as gone", func() bool {
		return one[bool](b, "select exists (select from core.workers where gone_at < clock_timestamp() - interval '4 "+
			"seconds')")
	})
	b.publish(event(3))
	l.awaitDelivered(1) // it has polled since
	b.wantRow(other.EventID, "pending", 0)
}

// While a session holds an old snapshot, settled rows stay in the index. Claims must not read past all of them.
func TestOldSnapshotDoesNotSlowClaims(t *testing.T) {
	b := setupSerial(t) // a long transaction of another test would hold the watermark
	const backlog = 10_000
	b.exec(`select core.outbox_publish_many(jsonb_agg(jsonb_build_object('event_type', 'worlds.test.happened', 'source',
		'worlds',
		'payload', jsonb_build_object('n', i)))) from generate_series(1, $1::int) i group by i / 1000`, backlog)
	old := b.conn()
	_, err := old.Exec(b.ctx, "begin isolation level repeatable read; select count(*) from core.outbox")
	must(t, err)
	read := func() int {
		b.exec("select pg_stat_clear_snapshot()")
		return one[int](b, "select idx_tup_read::int from pg_stat_user_indexes where indexrelname = 'outbox_due'")
	}
	before := read()
	s := subscription(handler("platform.one", func(context.Context, events.Tx, events.Envelope) error { return nil }))
	l := b.startWorker(noPoll, s)
	l.awaitDelivered(backlog)
	l.stop()
	l.workers.Close()
	b.eventually("the end of its backends, which report their statistics", func() bool {
		return !one[bool](b, `select exists (select from pg_stat_activity where datname = current_database()
			and application_name in ('workers', 'notifier'))`)
	})
	perRow := float64(read()-before) / backlog
	t.Logf("%.1f index entries per row", perRow)
	if perRow > 6 || perRow < 1 {
		t.Fatalf("%.1f index entries were read per row", perRow)
	}
}

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
	l := b.startWorker(noPoll, leasedSubscription(time.Minute, effectExecutor(executor1)))
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
