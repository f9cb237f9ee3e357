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

// A worker that is stopped as it registers leaves nothing behind that looks like one that died.
func TestAWorkerStoppedAsItRegistersLeavesNothing(t *testing.T) {
	b := setupAlone(t) // the server has to answer within leaveTimeout
	for range 2 {
		now := make(chan struct{})
		registers := sync.OnceFunc(func() { close(now) })
		l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.x")), before("worker_register", registers))
		must(t, l.Start(b.ctx))
		within(t, now)
		must(t, l.Stop(b.ctx))
	}
	if left := one[int](b, "select count(*) from core.workers"); left != 0 {
		t.Errorf("%d workers are left that do not run", left)
	}
}

// A worker whose generation has come to its end says so once, when it looks: each minute, and when it listens again.
func workersSayThatTheirGenerationIsOver(b *bundle) {
	logged := &notes{}
	b.log = slog.NewTextHandler(logged, nil)
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	b.exec("update core.deployments set status = 'draining', draining_at = now() where generation = $1", pgtest.Generation)
	const drained = "is drained, and has nothing left"
	changed := l.Health().Changed()
	b.killNotifier()
	within(b.T, changed)
	b.eventually("it says that its generation is drained", func() bool { return logged.count(drained) == 1 })
	l.wantState(testTimeout, notify.Listening, "")
	b.exec("update core.deployments set status = 'retired', retired_at = now() where generation = $1", pgtest.Generation)
	b.killNotifier()
	b.eventually("it says that its generation is retired", func() bool { return logged.count("is retired, and the worker has nothing to do") == 1 })
	if n := logged.count(drained); n != 1 {
		b.Errorf("it said %d times that its generation is drained", n)
	}
}

// drains is a drain that goes on.
type drains struct {
	*listening
	ended chan error
}

func (l *listening) drain(ctx context.Context, ownTypesOnly bool) drains {
	d := drains{l, make(chan error, 1)}
	go func() { d.ended <- l.Drain(ctx, ownTypesOnly) }()
	return d
}

func (d drains) end() error {
	d.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(testTimeout):
		d.Fatalf("the drain has not ended within %s", testTimeout)
		return nil
	}
}

// goesOn fails if the drain has ended.
func (d drains) goesOn(beside string) {
	d.Helper()
	select {
	case err := <-d.ended:
		d.Fatalf("the drain has ended beside %s: %v", beside, err)
	default:
	}
}

// byHand inserts events that were due an hour ago.
const byHand = `insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, available_at)
	select $1, 1, 'worlds', 'operational', 'outbox_gen_' || $2::bigint, $2::bigint, jsonb_build_object('n', i), 'by hand ' || i, clock_timestamp() - interval '1 hour'
	from generate_series(1, $3::integer) i`

// TestDrain runs cases that share a database.
func TestDrain(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"drain of what others handle":                    drainOfWhatOthersHandle,
		"a test's drain waits for what handlers publish": testsDrainWaitsForWhatHandlersPublish,
		"workers say that their generation is over":      workersSayThatTheirGenerationIsOver,
		"drain waits for what is left":                   drainWaitsForWhatIsLeft,
		"drain ends with its listener":                   drainEndsWithItsListener,
	})
}

// A drain goes on while a handler runs, while an event is in flight in another process and while one is
// scheduled, says what for, and ends with the last; of two, both do.
func drainWaitsForWhatIsLeft(b *bundle) {
	log := &notes{}
	b.log = logTo(log)
	says := func(what string) {
		b.Helper()
		b.eventually("the log has "+what, func() bool { return log.count(what) > 0 })
	}
	g := newGate()
	b.Cleanup(g.letOn)
	l := b.listen(noPoll, subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error { return g.pass(ctx) })))
	b.publish(event(1))
	g.awaitEntered(b.T)
	d := l.drain(b.ctx, false)
	says(`"msg":"draining: events are left","due":1,"scheduled":0,"in_flight":0}`)
	b.exec("insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key, status, claim_token, claimed_at, lease_seconds) values ($1, 1, 'worlds', 'operational', 1, '{}', 'elsewhere', 'in_flight', gen_random_uuid(), now(), 3600)", happenedType)
	b.exec(`select core.outbox_publish($1, 'worlds', '{"n": 2}', p_available_at => now() + interval '700 milliseconds')`, happenedType)
	d.goesOn("a handler that runs")
	g.letOn()
	l.delivered(2)
	second := l.drain(b.ctx, true)
	says(`"msg":"draining: events are left","due":0,"scheduled":0,"in_flight":1}`)
	d.goesOn("an event in flight")
	second.goesOn("an event in flight")
	b.exec("update core.outbox set status = 'delivered', claim_token = null where idempotency_key = 'elsewhere'")
	must(b.T, d.end())
	must(b.T, second.end())
}

// Event types without a handler end a drain, and are not waited for; those that another live worker handles are.
func drainOfWhatOthersHandle(b *bundle) {
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	b.exec(byHand, slowType, 1, 3)
	var stranded *worker.StrandedError
	if err := l.drain(b.ctx, false).end(); !errors.As(err, &stranded) || len(stranded.Types) != 1 || stranded.Types[0] != (worker.StrandedType{EventType: slowType, Events: 3}) {
		b.Fatalf("the drain ended with %v", err)
	}
	must(b.T, l.drain(b.ctx, true).end())
	b.publish(event(1))
	l.delivered(1)
	g := newGate()
	b.Cleanup(g.letOn)
	other := b.newWorker(noPoll, pgtest.Generation, slowSubscription(executor("worlds.slow", func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion("worlds.slow", e), g.pass(ctx)
	})))
	other.start()
	g.awaitAll(b.T, 3)
	d := l.drain(b.ctx, false)
	stops := l.drain(b.ctx, false)
	ctx, cancel := context.WithCancel(b.ctx)
	interrupted := l.drain(ctx, false)
	cancel()
	if err := interrupted.end(); !errors.Is(err, context.Canceled) {
		b.Errorf("an interrupted drain ends with %v", err)
	}
	d.goesOn("events of another worker")
	g.letOn()
	other.delivered(3)
	must(b.T, d.end())
	must(b.T, stops.end())
}

// A drain ends with its listener.
func drainEndsWithItsListener(b *bundle) {
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")))
	l.start()
	b.exec(`select core.outbox_publish($1, 'worlds', '{"n": 1}', p_available_at => now() + interval '1 day')`, happenedType)
	d := l.drain(b.ctx, false)
	l.stop()
	must(b.T, d.end())
}

// Events that are adopted are found at once, whatever they were stamped with and however far the claim watermark has risen.
func adoptedEventsAreFound(b *bundle) {
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	for n, until := 0, time.Now().Add(500*time.Millisecond); time.Now().Before(until); n++ {
		b.publish(event(n))
		l.delivered(1)
	}
	b.exec(byHand, happenedType, 5, 20)
	if n := one[int](b, "select core.outbox_adopt(5, 1)"); n != 20 {
		b.Fatalf("%d events were adopted", n)
	}
	l.delivered(20)
	b.exec("select core.generation_drain(1, p_force => true)")
	must(b.T, l.drain(b.ctx, false).end())
}
