package integration_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/pgtest"
)

func TestWorkerStoppedWhileItRegistersLeavesNoRow(t *testing.T) {
	b := setupSerial(t) // the server has to answer within leaveTimeout
	for range 2 {
		registering := make(chan struct{})
		onRegister := sync.OnceFunc(func() { close(registering) })
		l := b.newWorker(noPoll, subscription(effectHandler("platform.x")), before("worker_register", onRegister))
		must(t, l.Start(b.ctx))
		receive(t, registering)
		must(t, l.Stop(b.ctx))
	}
	if left := one[int](b, "select count(*) from core.workers"); left != 0 {
		t.Errorf("%d rows are left of workers that do not run", left)
	}
}

// The worker checks each minute and when it listens again, and logs each state once.
func workersReportADrainedOrRetiredGeneration(b *bundle) {
	logged := &logBuffer{}
	b.log = slog.NewTextHandler(logged, nil)
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.exec("update core.deployments set status = 'draining', draining_at = now() where generation = $1", pgtest.Generation)
	const drained = "is drained: nothing is left to do"
	changed := l.Health().Changed()
	b.killNotifier()
	receive(b.T, changed)
	b.eventually("the log entry about the drained generation", func() bool { return logged.count(drained) == 1 })
	l.wantState(testTimeout, notify.Listening, "")
	b.exec("update core.deployments set status = 'retired', retired_at = now() where generation = $1", pgtest.Generation)
	b.killNotifier()
	b.eventually("the log entry about the retired generation",
		func() bool { return logged.count("is retired: the worker has nothing left to do") == 1 })
	if n := logged.count(drained); n != 1 {
		b.Errorf("%d log entries about the drained generation, want 1", n)
	}
}

// Due events of which none can be claimed, here because another session locks them, are reported until they are
// handled. One that is being handled is progress.
func dueEventsWithoutProgressAreReported(b *bundle) {
	b.publish(event(1))
	lock, err := b.pool.Begin(b.ctx)
	must(b.T, err)
	unlock := sync.OnceFunc(func() { _ = lock.Rollback(b.ctx) })
	defer unlock()
	_, err = lock.Exec(b.ctx, "select from core.outbox for update")
	must(b.T, err)
	started, end := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	defer release()
	l := b.startWorker(noPoll, subscription(handlerOnce("platform.one", func(context.Context, events.Tx,
		events.Envelope) error {
		close(started)
		<-end
		return nil
	})))
	stalled := func(want int) func() bool {
		return func() bool {
			b.exec("select pg_notify('outbox_gen_1', '')")
			return len(l.Health().Stalled(50*time.Millisecond)) == want
		}
	}
	b.eventually("the report", stalled(1))
	unlock()
	b.exec("select pg_notify('outbox_gen_1', '')")
	receive(b.T, started)
	b.eventually("the end of the report", stalled(0))
	release()
}

// A worker that finds only what another one is handling makes progress.
func whatAnotherWorkerHandlesIsProgress(b *bundle) {
	b.publish(event(1))
	g := b.newGate()
	b.startWorker(noPoll, subscription(gatedHandler("platform.one", g)))
	g.awaitEntered(b.T)
	const poll = 20 * time.Millisecond
	idle := b.startWorker(poll, subscription(gatedHandler("platform.one", g)))
	polls, latest := 0, time.Time{}
	b.eventually("30 polls", func() bool {
		if answered := idle.Health().Answered(); answered.After(latest) {
			polls, latest = polls+1, answered
		}
		return polls >= 30
	})
	if len(idle.Health().Stalled(time.Since(idle.Health().Answered())+10*poll)) > 0 {
		b.Error("it is reported as stalled")
	}
	g.release()
}

// A worker makes the months that core.outbox will need.
func TestWorkersMakePartitions(t *testing.T) {
	b := setup(t)
	must(t, pgtest.Partition(b.ctx, b.url))
	b.exec(`do $$ declare v name; begin
			for v in select m.name from core.outbox_months() m where m.name not like 'outbox_until%' loop
				execute format('drop table core.%I', v);
			end loop;
		end $$`)
	b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.eventually("the month", func() bool { return one[int](b, "select count(*) from core.outbox_months()") > 1 })
}

func (l *testWorker) drain(ctx context.Context, ownTypesOnly bool) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- l.Drain(ctx, ownTypesOnly) }()
	return ended
}

func (b *bundle) wantRunning(beside string, drains ...<-chan error) {
	b.Helper()
	for _, d := range drains {
		select {
		case err := <-d:
			b.Fatalf("the drain has ended beside %s: %v", beside, err)
		default:
		}
	}
}

// insertSQL inserts events that were due an hour ago.
const insertSQL = `insert into core.outbox (event_type, event_version, source, content_class, channel, generation,
		payload, idempotency_key, available_at)
	select $1, 1, 'worlds', 'operational', 'outbox_gen_' || $2::bigint, $2::bigint,
		jsonb_build_object('n', i), 'by hand ' || i, clock_timestamp() - interval '1 hour'
	from generate_series(1, $3::integer) i`

func TestDrain(t *testing.T) {
	setup(t).cases(aTestsDrainWaitsForWhatHandlersPublish, drainEndsWithItsWorker,
		drainWaitsForOtherWorkersAndNotForUnhandledTypes, drainWaitsForRunningLeasedAndScheduledEvents,
		dueEventsWithoutProgressAreReported, whatAnotherWorkerHandlesIsProgress, workersReportADrainedOrRetiredGeneration)
}

// The log names what a drain waits for. Two drains at a time both end.
func drainWaitsForRunningLeasedAndScheduledEvents(b *bundle) {
	b.ofRowLocks()
	log := &logBuffer{}
	b.log = logTo(log)
	awaitLog := func(what string) {
		b.Helper()
		b.eventually("the log has "+what, func() bool { return log.count(what) > 0 })
	}
	g := b.newGate()
	l := b.startWorker(noPoll, subscription(gatedHandler("platform.one", g)))
	b.publish(event(1))
	g.awaitEntered(b.T)
	d := l.drain(b.ctx, false)
	awaitLog(`"msg":"draining: events are left","due":1,"scheduled":0,"in_flight":0,`)
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, generation, payload,
			idempotency_key, status, claim_token, claimed_at, lease_seconds)
		values ($1, 1, 'worlds', 'operational', 1, '{}', 'elsewhere', 'in_flight', gen_random_uuid(), now(), 3600)`,
		happenedType)
	b.exec(`select core.outbox_publish($1, 'worlds', '{"n": 2}', p_available_at => now() +
		interval '700 milliseconds')`, happenedType)
	b.wantRunning("a handler that runs", d)
	g.release()
	l.awaitDelivered(2)
	second := l.drain(b.ctx, true)
	awaitLog(`"msg":"draining: events are left","due":0,"scheduled":0,"in_flight":1,`)
	b.wantRunning("an event in flight", d, second)
	b.exec("update core.outbox set status = 'delivered', claim_token = null where idempotency_key = 'elsewhere'")
	must(b.T, errors.Join(receive(b.T, d), receive(b.T, second)))
}

// An event type that no live worker handles ends a drain with an error.
func drainWaitsForOtherWorkersAndNotForUnhandledTypes(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.exec(insertSQL, slowType, 1, 3)
	var stranded *worker.StrandedError
	want := worker.StrandedType{EventType: slowType, Events: 3}
	err := receive(b.T, l.drain(b.ctx, false))
	if !errors.As(err, &stranded) || len(stranded.Types) != 1 || stranded.Types[0] != want {
		b.Fatalf("the drain ended with %v", err)
	}
	must(b.T, receive(b.T, l.drain(b.ctx, true)))
	b.publish(event(1))
	l.awaitDelivered(1)
	g := b.newGate()
	other := b.startWorker(noPoll, slowSubscription(gatedExecutor("worlds.slow", g)))
	g.awaitAll(b.T, 3)
	d := l.drain(b.ctx, false)
	second := l.drain(b.ctx, false)
	ctx, cancel := context.WithCancel(b.ctx)
	interrupted := l.drain(ctx, false)
	cancel()
	if err := receive(b.T, interrupted); !errors.Is(err, context.Canceled) {
		b.Errorf("an interrupted drain ends with %v", err)
	}
	b.wantRunning("events of another worker", d, second)
	g.release()
	other.awaitDelivered(3)
	must(b.T, errors.Join(receive(b.T, d), receive(b.T, second)))
}

func drainEndsWithItsWorker(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.exec(`select core.outbox_publish($1, 'worlds', '{"n": 1}', p_available_at => now() + interval '1 day')`,
		happenedType)
	d := l.drain(b.ctx, false)
	l.stop()
	must(b.T, receive(b.T, d))
}

// Adopted events may be older than the claim watermark.
func adoptedEventsAreFound(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	for n, until := 0, time.Now().Add(500*time.Millisecond); time.Now().Before(until); n++ {
		b.publish(event(n))
		l.awaitDelivered(1)
	}
	b.exec(insertSQL, happenedType, 5, 20)
	if n := one[int](b, "select core.outbox_adopt(5, 1)"); n != 20 {
		b.Fatalf("%d events were adopted", n)
	}
	l.awaitDelivered(20)
	b.exec("select core.generation_drain(1, p_force => true)")
	must(b.T, receive(b.T, l.drain(b.ctx, false)))
}
