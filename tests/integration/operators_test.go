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

// operator returns a client with its own login.
func (b *bundle) operator() *operator.Client {
	b.Helper()
	return operator.New(pgtest.Pool(b.T, pgtest.Login(b.T, b.url, operator.Role)))
}

// failed selects all failed events.
func (b *bundle) failed(client *operator.Client) operator.Selection {
	b.Helper()
	s, err := client.Select(b.ctx, operator.Filter{Statuses: []operator.Status{operator.Failed}}, 0)
	must(b.T, err)
	return s
}

// fail makes every pending event failed, as a worker would.
func (b *bundle) fail() {
	b.Helper()
	b.exec(`update core.outbox set status = 'failed', attempts = 6, last_error = 'HandlerError: a.b: no',
		first_failed_at = clock_timestamp(), claimed_at = clock_timestamp(),
			handler_failures = '{"platform.one": {"failures": 6, "parked": true}}' where status = 'pending'`)
}

// unpaced returns a pace without a rate limit.
func unpaced(batch int) operator.Pace { return operator.Pace{Batch: batch, Rate: -1} }

func TestOperators(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"a pause affects only its event type":                aPauseAffectsOnlyItsEventType,
		"a producer reads its failures":                      aProducerReadsItsFailures,
		"a replay runs only unhandled handlers":              aReplayRunsOnlyUnhandledHandlers,
		"a running handler finishes when its type is paused": aRunningHandlerFinishesWhenItsTypeIsPaused,
		"retry now notifies the worker":                      retryNowNotifiesTheWorker,
		"an interrupted replay can be continued":             anInterruptedReplayCanBeContinued,
	})
}

// The preview says which handlers a replay would run. The next generation handles what is replayed into it.
func aReplayRunsOnlyUnhandledHandlers(b *bundle) {
	client := b.operator()
	var fixed atomic.Bool
	s := subscription(effectHandler("platform.one"),
		handler("worlds.two", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if !fixed.Load() {
				return events.Terminal(errOnPurpose)
			}
			return writeEffect("worlds.two")(ctx, tx, e)
		}))
	l := b.startWorker(noPoll, s)
	e := event(1)
	b.publish(e)
	l.awaitOutcome(dispatch.Failed)
	selection, err := client.SelectToReplay(b.ctx, []uuid.UUID{e.EventID}, pgtest.Generation, false)
	must(b.T, err)
	preview, err := client.PreviewReplay(b.ctx, selection, pgtest.Generation, false)
	must(b.T, err)
	want := []operator.HandlerEffect{
		{EventType: happenedType, Handler: "platform.one", Handled: 1},
		{EventType: happenedType, Handler: "worlds.two", WouldRun: 1},
	}
	if !slices.Equal(preview.Handlers, want) {
		b.Errorf("the preview says %v, want %v", preview.Handlers, want)
	}
	fixed.Store(true)
	b.generation++ // its worker has the same handlers
	b.exec("select core.generation_announce($1)", b.generation)
	defer b.exec("delete from core.deployments where generation = $1", b.generation)
	s.Channel = events.ChannelName(b.generation, "")
	next := b.startWorker(noPoll, s)
	replay := func(selection operator.Selection, force bool) operator.BulkResult {
		b.Helper()
		result, err := client.Replay(b.ctx, selection, b.generation, "anna", force, unpaced(1))
		must(b.T, err)
		return result
	}
	if result := replay(selection, false); result.Done != 1 || result.Skipped != 0 || result.NotReached != 0 {
		b.Errorf("the result is %+v", result)
	}
	next.awaitDelivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
	wantSkipped := func(result operator.BulkResult) {
		b.Helper()
		if result.Done != 0 || result.Skipped != 1 || result.Reasons[0].State != "delivered again" {
			b.Errorf("the result for a delivered event is %+v", result)
		}
	}
	wantSkipped(replay(selection, false))
	// By force a delivered event is replayed, once for each selection.
	selection, err = client.Select(b.ctx, operator.Filter{Statuses: []operator.Status{operator.Delivered}}, 0)
	must(b.T, err)
	if result := replay(selection, true); result.Done != 1 {
		b.Errorf("the result by force is %+v", result)
	}
	next.awaitDelivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
	wantSkipped(replay(selection, true))
	if len(l.settlements) > 0 {
		b.Errorf("the old generation handled %+v", <-l.settlements)
	}
}

// Resuming notifies the worker, which does not poll.
func aPauseAffectsOnlyItsEventType(b *bundle) {
	client := b.operator()
	l := b.newWorker(noPoll, subscription(effectHandler("platform.one")))
	must(b.T, l.Listen(b.ctx, slowSubscription(effectExecutor("worlds.slow"))))
	l.start()
	for _, c := range []struct {
		paused, other func(int) events.Envelope
		eventType     string
	}{{event, slow, happenedType}, {slow, event, slowType}} {
		b.publish(c.paused(0))
		l.awaitDelivered(1)
		must(b.T, client.Pause(b.ctx, c.eventType, pgtest.Generation, "anna", ""))
		for n := range 5 {
			b.publish(c.paused(n))
		}
		for n := range 10 {
			b.publish(c.other(n))
			l.awaitDelivered(1)
		}
		if waiting := one[int](b, "select count(*) from core.outbox where status = 'pending' and attempts = 0 and "+
			"event_type = $1", c.eventType); waiting != 5 {
			b.Fatalf("%d of 5 events of a paused type wait", waiting)
		}
		must(b.T, client.Resume(b.ctx, c.eventType, pgtest.Generation, "anna"))
		l.awaitDelivered(5)
	}
	b.wantEffects(map[string]int{"platform.one": 16, "worlds.slow": 16})
	if actions := one[int](b, "select count(*) from core.operator_actions where acted_by = 'anna'"); actions != 4 {
		b.Errorf("%d operator actions, want 4", actions)
	}
}

// Its failure is retried after the pause.
func aRunningHandlerFinishesWhenItsTypeIsPaused(b *bundle) {
	client := b.operator()
	g := newGate()
	b.Cleanup(g.release)
	var tries atomic.Int32
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if tries.Add(1) == 1 {
				return errors.Join(g.wait(ctx), errOnPurpose)
			}
			return writeEffect("platform.one")(ctx, tx, e)
		})))
	b.publish(event(1))
	g.awaitEntered(b.T)
	must(b.T, client.Pause(b.ctx, happenedType, pgtest.Generation, "", "why"))
	g.release()
	if s := l.nextSettlement(); s.Outcome != dispatch.Retried {
		b.Fatalf("it is %s", s.Outcome)
	}
	pauses, err := client.Pauses(b.ctx)
	must(b.T, err)
	if len(pauses) != 1 || pauses[0].EventType != happenedType || pauses[0].Reason == nil || *pauses[0].Reason != "why" {
		b.Errorf("the pauses are %+v", pauses)
	}
	must(b.T, client.Resume(b.ctx, happenedType, pgtest.Generation, ""))
	l.awaitDelivered(1)
	if n := tries.Load(); n != 2 {
		b.Errorf("the handler ran %d times", n)
	}
}

// An event scheduled for tomorrow runs at once.
func retryNowNotifiesTheWorker(b *bundle) {
	client := b.operator()
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.exec(`select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 1}', p_available_at => clock_timestamp()
		+ interval '1 day')`)
	b.exec(`select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 2}', p_available_at => clock_timestamp()
		+ interval '1 day')`)
	first := one[uuid.UUID](b, "select id from core.outbox where payload ->> 'n' = '1'")
	waiting, err := client.SelectToRetryNow(b.ctx, []uuid.UUID{first})
	must(b.T, err)
	if one[bool](b, "select bool_or(available_at <= now()) from core.outbox where payload ->> 'n' = '1'") {
		b.Error("selecting the event made it due")
	}
	_, err = client.RetryNow(b.ctx, waiting, "anna", unpaced(1))
	must(b.T, err)
	l.awaitDelivered(1)
	s, err := client.Select(b.ctx, operator.Filter{Statuses: []operator.Status{operator.Scheduled}}, 0)
	must(b.T, err)
	if result, err := client.RetryNow(b.ctx, s, "anna", operator.Pace{}); err != nil || result.Done != 1 {
		b.Fatalf("the result is %+v, %v", result, err)
	}
	l.awaitDelivered(1)
	b.wantEffects(map[string]int{"platform.one": 2})
}

func anInterruptedReplayCanBeContinued(b *bundle) {
	client := b.operator()
	const failed = 20
	b.publishMany(failed)
	b.fail()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	pace := unpaced(2)
	pace.Progress = func(through int) {
		if through == 6 {
			cancel()
		}
	}
	result, err := client.Replay(ctx, b.failed(client), pgtest.Generation, "anna", false, pace)
	if !errors.Is(err, context.Canceled) || result.Done != 6 || result.NotReached != 14 {
		b.Fatalf("the interrupted result is %+v, %v", result, err)
	}
	rest := b.failed(client)
	if rest.Len() != 14 {
		b.Fatalf("%d are left", rest.Len())
	}
	// A selection of the rest does not contain events that failed again.
	refusing := handler("platform.one",
		func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errOnPurpose) })
	l := b.startWorker(noPoll, subscription(refusing))
	for range 6 {
		l.awaitOutcome(dispatch.Failed)
	}
	result, err = client.Replay(b.ctx, rest, pgtest.Generation, "anna", false, unpaced(5))
	must(b.T, err)
	if result.Done != 14 {
		b.Errorf("the result for the rest is %+v", result)
	}
	for range 14 {
		l.awaitOutcome(dispatch.Failed)
	}
	if n := one[int](b, "select count(*) from core.outbox where jsonb_array_length(failure_history) = 1 and status = "+
		"'failed'"); n != failed {
		b.Errorf("%d were replayed once", n)
	}
	// The same selection again: its events have changed.
	result, err = client.Replay(b.ctx, rest, pgtest.Generation, "anna", false, unpaced(100))
	must(b.T, err)
	if result.Done != 0 || result.Skipped != 14 || result.Reasons[0].State != "failed again" {
		b.Errorf("for events that failed again %d were replayed", result.Done)
	}
}
