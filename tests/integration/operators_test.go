package integration_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/tests/pgtest"
)

// operator acts by a login of its own.
func (b *bundle) operator() *operator.Client {
	b.Helper()
	return operator.New(pgtest.Pool(b.T, pgtest.Login(b.T, b.url, operator.Role)))
}

// failed is all failed events.
func (b *bundle) failed(client *operator.Client) operator.Selection {
	b.Helper()
	s, err := client.Select(b.ctx, operator.Filter{Statuses: []operator.Status{operator.Failed}}, 0)
	must(b.T, err)
	return s
}

// fail makes every pending event a failed one, as a worker would have.
func (b *bundle) fail() {
	b.Helper()
	b.exec(`update core.outbox set status = 'failed', attempts = 6, last_error = 'HandlerError: a.b: no', first_failed_at = clock_timestamp(),
		claimed_at = clock_timestamp(), handler_failures = '{"platform.one": {"failures": 6, "parked": true}}' where status = 'pending'`)
}

// unhurried are paces as fast as it goes.
func unhurried(batch int) operator.Pace { return operator.Pace{Batch: batch, Rate: -1} }

// TestOperators runs cases that share a database: what operators do, beside a worker.
func TestOperators(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"a pause holds back its type alone":               aPauseHoldsBackItsTypeAlone,
		"a dead letter is found by operator and producer": aDeadLetterIsFoundByOperatorAndProducer,
		"failures are read in pages":                      failuresAreReadInPages,
		"a replay runs what is unhandled":                 aReplayRunsWhatIsUnhandled,
		"a pause with work that runs":                     aPauseWithWorkThatRuns,
		"retry now wakes":                                 retryNowWakes,
		"replaying many":                                  replayingMany,
	})
}

// A failed event is replayed once its handler is fixed: only that one runs, as the preview says.
func aReplayRunsWhatIsUnhandled(b *bundle) {
	client := b.operator()
	var fixed atomic.Bool
	l := b.listen(noPoll, subscription(leaving("platform.one"), handler("worlds.two", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if !fixed.Load() {
			return events.Terminal(errRefusing)
		}
		return effect("worlds.two")(ctx, tx, e)
	})))
	e := event(1)
	b.publish(e)
	l.until(dispatch.Failed)
	selection, err := client.SelectToReplay(b.ctx, []uuid.UUID{e.EventID}, pgtest.Generation, false)
	must(b.T, err)
	preview, err := client.PreviewReplay(b.ctx, selection, pgtest.Generation, false)
	must(b.T, err)
	if want := []operator.HandlerEffect{{EventType: happenedType, Handler: "platform.one", Handled: 1}, {EventType: happenedType, Handler: "worlds.two", WouldRun: 1}}; !slices.Equal(preview.Handlers, want) {
		b.Errorf("the preview says %v, want %v", preview.Handlers, want)
	}
	fixed.Store(true)
	result, err := client.Replay(b.ctx, selection, pgtest.Generation, "anna", false, unhurried(1))
	must(b.T, err)
	if result.Done != 1 || result.Skipped != 0 || result.NotReached != 0 {
		b.Errorf("it did %+v", result)
	}
	l.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
	// by force it runs through again, with no effect
	result, err = client.Replay(b.ctx, selection, pgtest.Generation, "anna", false, unhurried(1))
	must(b.T, err)
	if result.Done != 0 || result.Skipped != 1 || len(result.Reasons) != 1 || result.Reasons[0].State != "delivered again" {
		b.Errorf("of a delivered event it did %+v", result)
	}
	// once for each time that an operator asks: who replays the same selection twice has it replayed once
	selection, err = client.Select(b.ctx, operator.Filter{Statuses: []operator.Status{operator.Delivered}}, 0)
	must(b.T, err)
	result, err = client.Replay(b.ctx, selection, pgtest.Generation, "anna", true, unhurried(1))
	must(b.T, err)
	if result.Done != 1 {
		b.Errorf("by force it did %+v", result)
	}
	l.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
	result, err = client.Replay(b.ctx, selection, pgtest.Generation, "anna", true, unhurried(1))
	must(b.T, err)
	if result.Done != 0 || result.Skipped != 1 || len(result.Reasons) != 1 || result.Reasons[0].State != "delivered again" {
		b.Errorf("by force, of what was delivered again, it did %+v", result)
	}
}

// A pause holds back its type alone, and its end wakes the worker, with no poll to help.
func aPauseHoldsBackItsTypeAlone(b *bundle) {
	client := b.operator()
	l := b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one")))
	must(b.T, l.Listen(b.ctx, slowSubscription(completing("worlds.slow"))))
	l.start()
	for _, c := range []struct {
		paused, other func(int) events.Envelope
		eventType     string
	}{{event, slow, happenedType}, {slow, event, slowType}} {
		b.publish(c.paused(0))
		l.delivered(1)
		must(b.T, client.Pause(b.ctx, c.eventType, pgtest.Generation, "anna", ""))
		for n := range 5 {
			b.publish(c.paused(n))
		}
		for n := range 10 {
			b.publish(c.other(n))
			l.delivered(1)
		}
		if waiting := one[int](b, "select count(*) from core.outbox where status = 'pending' and attempts = 0 and event_type = $1", c.eventType); waiting != 5 {
			b.Fatalf("%d of 5 events of a paused type wait", waiting)
		}
		must(b.T, client.Resume(b.ctx, c.eventType, pgtest.Generation, "anna"))
		l.delivered(5)
	}
	b.wantEffects(map[string]int{"platform.one": 16, "worlds.slow": 16})
	if actions := one[int](b, "select count(*) from core.operator_actions where acted_by = 'anna'"); actions != 4 {
		b.Errorf("%d actions are noted", actions)
	}
}

// A handler that runs when its type is paused finishes; what it fails waits.
func aPauseWithWorkThatRuns(b *bundle) {
	client := b.operator()
	g := newGate()
	b.Cleanup(g.letOn)
	var tries atomic.Int32
	l := b.listen(noPoll, subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if tries.Add(1) == 1 {
			return errors.Join(g.pass(ctx), errRefusing)
		}
		return effect("platform.one")(ctx, tx, e)
	})))
	b.publish(event(1))
	g.awaitEntered(b.T)
	must(b.T, client.Pause(b.ctx, happenedType, pgtest.Generation, "", "why"))
	g.letOn()
	if s := l.next(); s.Outcome != dispatch.Retried {
		b.Fatalf("it is %s", s.Outcome)
	}
	pauses, err := client.Pauses(b.ctx)
	must(b.T, err)
	if len(pauses) != 1 || pauses[0].EventType != happenedType || pauses[0].Reason == nil || *pauses[0].Reason != "why" {
		b.Errorf("paused are %+v", pauses)
	}
	must(b.T, client.Resume(b.ctx, happenedType, pgtest.Generation, ""))
	l.delivered(1)
	if n := tries.Load(); n != 2 {
		b.Errorf("it ran %d times", n)
	}
}

// An event that waits for a retry runs at once when told to, with no poll and long before its time.
func retryNowWakes(b *bundle) {
	client := b.operator()
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	b.exec(`select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 1}', p_available_at => clock_timestamp() + interval '1 day')`)
	b.exec(`select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 2}', p_available_at => clock_timestamp() + interval '1 day')`)
	waiting, err := client.SelectToRetryNow(b.ctx, []uuid.UUID{one[uuid.UUID](b, "select id from core.outbox where payload ->> 'n' = '1'")})
	must(b.T, err)
	if one[bool](b, "select bool_or(available_at <= now()) from core.outbox where payload ->> 'n' = '1'") {
		b.Error("it was made due by looking whether it can be")
	}
	_, err = client.RetryNow(b.ctx, waiting, "anna", unhurried(1))
	must(b.T, err)
	l.delivered(1)
	s, err := client.Select(b.ctx, operator.Filter{Statuses: []operator.Status{operator.Scheduled}}, 0)
	must(b.T, err)
	if result, err := client.RetryNow(b.ctx, s, "anna", operator.Pace{}); err != nil || result.Done != 1 {
		b.Fatalf("it did %+v, %v", result, err)
	}
	l.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 2})
}

// An act on many goes on where it was interrupted, and does not go round in circles.
func replayingMany(b *bundle) {
	client := b.operator()
	const failed = 20
	b.publishMany(failed)
	b.fail()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	pace := unhurried(2)
	pace.Progress = func(through int) {
		if through == 6 {
			cancel()
		}
	}
	result, err := client.Replay(ctx, b.failed(client), pgtest.Generation, "anna", false, pace)
	if !errors.Is(err, context.Canceled) || result.Done != 6 || result.NotReached != 14 {
		b.Fatalf("interrupted, it did %+v, %v", result, err)
	}
	rest := b.failed(client)
	if rest.Len() != 14 {
		b.Fatalf("%d are left", rest.Len())
	}
	// what fails again at once is not among them any more
	refusing := handler("platform.one", func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errRefusing) })
	l := b.listen(noPoll, subscription(refusing))
	for range 6 {
		l.until(dispatch.Failed)
	}
	result, err = client.Replay(b.ctx, rest, pgtest.Generation, "anna", false, unhurried(5))
	must(b.T, err)
	if result.Done != 14 {
		b.Errorf("the rest: %+v", result)
	}
	for range 14 {
		l.until(dispatch.Failed)
	}
	if n := one[int](b, "select count(*) from core.outbox where jsonb_array_length(failure_history) = 1 and status = 'failed'"); n != failed {
		b.Errorf("%d have been replayed once", n)
	}
	// and the same selection once more finds them changed
	result, err = client.Replay(b.ctx, rest, pgtest.Generation, "anna", false, unhurried(100))
	must(b.T, err)
	if result.Done != 0 || result.Skipped != 14 || result.Reasons[0].State != "failed again" {
		b.Errorf("of what failed again it did %+v", result.Done)
	}
}
