package integration_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/pgtest"
)

func (b *bundle) operator() *operator.Client {
	b.Helper()
	return operator.New(pgtest.Pool(b.T, pgtest.Login(b.T, b.url, operator.Role)))
}

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

// none leaves each handler to its policy.
var none operator.Choice

func unpaced(batch int) operator.Pace { return operator.Pace{Batch: batch, Rate: -1} }

func TestOperators(t *testing.T) {
	setup(t).cases(aProducerReadsItsFailures, aReplayRunsOnlyUnhandledHandlers,
		aRunningHandlerFinishesWhenItsTypeIsPaused, anInterruptedReplayCanBeContinued)
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
	selection, err := client.SelectNamed(b.ctx, []uuid.UUID{e.EventID},
		operator.Replay(pgtest.Generation, "anna", false, none))
	must(b.T, err)
	preview, err := client.PreviewReplay(b.ctx, selection, pgtest.Generation, none, false)
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
		result, err := client.Apply(b.ctx, selection, operator.Replay(b.generation, "anna", force, none), unpaced(1))
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

// Its failure is retried after the pause.
func aRunningHandlerFinishesWhenItsTypeIsPaused(b *bundle) {
	client := b.operator()
	g := b.newGate()
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
	result, err := client.Apply(ctx, b.failed(client), operator.Replay(pgtest.Generation, "anna", false, none), pace)
	if !errors.Is(err, context.Canceled) || result.Done != 6 || result.NotReached != 14 {
		b.Fatalf("the interrupted result is %+v, %v", result, err)
	}
	rest := b.failed(client)
	// The rest does not contain the events that fail again.
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errOnPurpose) })))
	l.awaitSettled(0, 6)
	result, err = client.Apply(b.ctx, rest, operator.Replay(pgtest.Generation, "anna", false, none), unpaced(5))
	must(b.T, err)
	if result.Done != 14 {
		b.Errorf("the result for the rest is %+v", result)
	}
	l.awaitSettled(0, 14)
	// The same selection again: its events have changed.
	result, err = client.Apply(b.ctx, rest, operator.Replay(pgtest.Generation, "anna", false, none), unpaced(100))
	must(b.T, err)
	if result.Done != 0 || result.Skipped != 14 || result.Reasons[0].State != "failed again" {
		b.Errorf("for events that failed again %d were replayed", result.Done)
	}
}

// A producer reads its dead letters, the discarded ones too, page by page and in its workspace only.
func aProducerReadsItsFailures(b *bundle) {
	const fails = "worlds.test_fails"
	workspace, other := newWorkspace(), newWorkspace()
	all := make([]events.Envelope, 115)
	for i := range all {
		all[i] = event(i)
		all[i].Target, all[i].WorkspaceID = events.Worlds, workspace
	}
	b.publish(all...)
	b.exec("update core.outbox set status = 'failed', claimed_at = created_at where payload ->> 'n' <> '114'")
	b.exec("update core.outbox set deleted_at = now(), discarded_at = now() where (payload ->> 'n')::int % 10 = 0")
	l := b.startWorker(noPoll, subscription(handler(fails,
		func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errOnPurpose) })))
	l.awaitOutcome(dispatch.Failed)
	slices.Reverse(all)
	for _, page := range []int{50, events.MaxFailures} {
		have := b.failures(workspace, page)
		if len(have) != len(all) {
			b.Fatalf("in pages of %d there are %d failures, want %d", page, len(have), len(all))
		}
		for i, f := range have {
			discarded := payloadN(all[i])%10 == 0
			if f.Envelope.EventID != all[i].EventID || f.DiscardedAt.IsZero() == discarded {
				b.Fatalf("in pages of %d failure %d is %+v", page, i, f)
			}
		}
		if f := have[0]; f.Envelope.WorkspaceID != workspace || f.Envelope.Target != events.Worlds ||
			string(f.Envelope.Payload) != `{"n": 114}` || f.Attempts != 1 || f.FailedAt.IsZero() ||
			!strings.HasPrefix(f.LastError, "TerminalError: "+fails+": ") {
			b.Errorf("the latest is %+v", f)
		}
	}
	for _, elsewhere := range []uuid.NullUUID{other, {}} {
		if others := b.failures(elsewhere, 10); len(others) != 0 {
			b.Errorf("in workspace %v worlds sees %+v", elsewhere, others)
		}
	}
}

// failures returns the failed events of worlds in a workspace, which it reads page by page.
func (b *bundle) failures(workspace uuid.NullUUID, page int) (all []events.Failure) {
	b.Helper()
	must(b.T, b.uow.Do(b.ctx, events.Worlds, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		reader := publish.NewFailureReader(tx, events.Worlds)
		var last events.Failure
		for {
			found, err := reader.Failures(b.ctx, page, last)
			if err != nil || len(found) == 0 {
				return err
			}
			all = append(all, found...)
			last = found[len(found)-1]
		}
	}))
	return all
}
