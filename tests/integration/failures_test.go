package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/tests/pgtest"
)

func TestFailures(t *testing.T) {
	setup(t).cases(failuresAreGroupedAndKept, aReplaySkipsWhatHadBegun, handlersKnowTheirDelivery, effectsKnowTheirCause)
}

// Failures of three causes with ids in their texts make three groups. Each attempt is kept, with the stack of a panic.
// After a replay the group says that its events came back.
func failuresAreGroupedAndKept(b *bundle) {
	client := b.operator()
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(_ context.Context, _ events.Tx, e events.Envelope) error {
			switch n := payloadN(e); n % 3 {
			case 0:
				return events.Terminal(fmt.Errorf("no card %s, asked by 'anna %d'", e.EventID, n))
			case 1:
				return events.Terminal(fmt.Errorf("the balance of %d is %d", n, n*n))
			default:
				panic(fmt.Sprintf("index out of range [%d]", n))
			}
		})))
	const n = 27 // of each cause too few to open the breaker
	b.publishMany(n)
	groups := func() []operator.ErrorGroup {
		found, err := client.ErrorGroups(b.ctx, operator.GroupFilter{Limit: 10}, 0)
		must(b.T, err)
		return found.Groups
	}
	b.eventually("all have failed", func() bool {
		return one[int](b, "select count(*)::int from core.outbox where status = 'failed'") == n
	})
	all := groups()
	if len(all) != 3 {
		b.Fatalf("%d groups: %+v", len(all), all)
	}
	for _, g := range all {
		if g.Count != n/3 || g.Failed != n/3 || g.CameBack != 0 || len(g.Samples) != 3 || g.Handler != "platform.one" {
			b.Errorf("the group is %+v", g)
		}
	}
	panicked := all[slices.IndexFunc(all, func(g operator.ErrorGroup) bool { return g.ErrorClass == "PanicError" })]
	details, err := client.Show(b.ctx, panicked.Samples[0])
	must(b.T, err)
	attempts := details[0].FailedAttempts
	if len(attempts) != 1+fastRetry.MaxRetries || attempts[0].Stack == nil || attempts[0].GroupID != panicked.GroupID ||
		attempts[0].Attempt != 1 || attempts[0].Worker == "" || attempts[0].StartedAt.Before(details[0].CreatedAt) {
		b.Errorf("the attempts are %+v", attempts)
	}
	// the filter of every command
	terminal := all[slices.IndexFunc(all, func(g operator.ErrorGroup) bool { return g.ErrorClass == "TerminalError" })]
	s, err := client.Select(b.ctx, operator.Filter{
		Statuses: []operator.Status{operator.Failed}, Groups: []string{terminal.GroupID}}, 0)
	must(b.T, err)
	if s.Len() != n/3 {
		b.Errorf("the filter selects %d events", s.Len())
	}
	result, err := client.Apply(b.ctx, s, operator.Replay(pgtest.Generation, "anna", false, none), unpaced(100))
	must(b.T, err)
	b.eventually("all have failed again", func() bool {
		return one[int](b, "select count(*)::int from core.outbox where status = 'failed'") == n
	})
	for _, g := range groups() {
		if came := g.GroupID == terminal.GroupID; came != (g.CameBack == result.Done) {
			b.Errorf("after the replay the group is %+v", g)
		}
	}
	must(b.T, client.MuteGroup(b.ctx, terminal.GroupID, 1<<40, "anna"))
	if left := groups(); len(left) != 2 {
		b.Errorf("with one muted there are %d", len(left))
	}
	for len(l.settlements) > 0 {
		<-l.settlements
	}
}

// A handler that acts outside and had begun is not run again by a replay if its policy is skip. The other one is.
func aReplaySkipsWhatHadBegun(b *bundle) {
	b.ofRowLocks()
	client := b.operator()
	var mails, effects atomic.Int32
	var fixed atomic.Bool
	fails := func(n *atomic.Int32) func(context.Context, events.Tx, events.Envelope) error {
		return func(context.Context, events.Tx, events.Envelope) error {
			n.Add(1)
			if !fixed.Load() {
				return events.Terminal(errOnPurpose)
			}
			return nil
		}
	}
	mailer := handler("platform.mailer", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		// a replay must know of it, should this process die now
		if begun := one[[]string](b, "select handlers from core.claim_journal where cardinality(ids) > 0"); !slices.Equal(
			begun, []string{"platform.mailer"}) {
			b.Errorf("the journal says that %v have begun", begun)
		}
		return fails(&mails)(ctx, tx, e)
	})
	mailer.ActsOutside, mailer.OnReplay = "sends mail", events.ReplaySkip
	l := b.startWorker(noPoll, subscription(mailer, handler("worlds.two", fails(&effects))))
	e := event(1)
	b.publish(e)
	l.awaitOutcome(dispatch.Failed)
	fixed.Store(true)
	s, err := client.SelectNamed(b.ctx, []uuid.UUID{e.EventID}, operator.Replay(pgtest.Generation, "anna", false, none))
	must(b.T, err)
	preview, err := client.PreviewReplay(b.ctx, s, pgtest.Generation, none, true)
	must(b.T, err)
	want := []operator.HandlerEffect{
		{EventType: happenedType, Handler: "platform.mailer", Skipped: 1, Outside: "sends mail"},
		{EventType: happenedType, Handler: "worlds.two", WouldRun: 1},
	}
	if !slices.Equal(preview.Handlers, want) {
		b.Errorf("the preview says %+v", preview.Handlers)
	}
	_, err = client.Apply(b.ctx, s, operator.Replay(pgtest.Generation, "anna", false, none), unpaced(1))
	must(b.T, err)
	l.awaitDelivered(1)
	if mails.Load() != 1 || effects.Load() != 2 {
		b.Errorf("the mailer ran %d times, the other %d times", mails.Load(), effects.Load())
	}
	details, err := client.Show(b.ctx, e.EventID)
	must(b.T, err)
	if stage := details[0].Handlers[0].Stage; stage != "skipped" {
		b.Errorf("the mailer is %s", stage)
	}
}

// A handler is told its attempt and whether it is a replay, in both modes.
func handlersKnowTheirDelivery(b *bundle) {
	b.ofRowLocks()
	client := b.operator()
	var mu sync.Mutex
	var told []events.DeliveryInfo
	note := func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, events.Delivery(ctx))
		if len(told) < 3 {
			return errOnPurpose
		}
		if len(told) == 3 {
			return events.Terminal(errOnPurpose)
		}
		return nil
	}
	for mode, s := range map[string]events.Subscription{
		"row-locked": subscription(handler("platform.one",
			func(ctx context.Context, _ events.Tx, _ events.Envelope) error { return note(ctx) })),
		"leased": leasedSubscription(events.DefaultLease, executor("platform.two",
			func(ctx context.Context, _ events.Envelope) (events.Completion, error) { return nil, note(ctx) })),
	} {
		told = nil
		l := b.startWorker(noPoll, s)
		e := event(1)
		b.publish(e)
		l.awaitOutcome(dispatch.Failed)
		selection, err := client.SelectNamed(b.ctx, []uuid.UUID{e.EventID},
			operator.Replay(pgtest.Generation, "anna", false, none))
		must(b.T, err)
		_, err = client.Apply(b.ctx, selection, operator.Replay(pgtest.Generation, "anna", false, none), unpaced(1))
		must(b.T, err)
		l.awaitDelivered(1)
		want := []events.DeliveryInfo{{Attempt: 1}, {Attempt: 2}, {Attempt: 3}, {Attempt: 1, Replay: true}}
		for i := range want {
			want[i].EventID = e.EventID
		}
		if !slices.Equal(told, want) {
			b.Errorf("%s: it is told %+v, want %+v", mode, told, want)
		}
		l.stop()
	}
}

// What a handler publishes has its event as the cause: in a handler of one event at once, in a batch if the handler
// names it. `show` has the tree.
func effectsKnowTheirCause(b *bundle) {
	client := b.operator()
	republish := handler("worlds.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if n := payloadN(e); n > 0 {
			return b.publishing.Publisher(tx).Publish(ctx, event(n-1))
		}
		return nil
	})
	batch := func(tx events.Tx) events.BatchHandler { return republishBatch{b, tx} }
	l := b.startWorker(noPoll, subscription(republish, events.Registration{Name: "worlds.two", Batch: batch}))
	first := event(2)
	b.publish(first)
	l.awaitDelivered(4)
	b.eventually("all are delivered", func() bool {
		return one[int](b, "select count(*)::int from core.outbox where status = 'delivered'") == 4
	})
	details, err := client.Show(b.ctx, first.EventID)
	must(b.T, err)
	var depths []int
	for _, r := range details[0].Effects {
		depths = append(depths, r.Depth)
	}
	if !slices.Equal(depths, []int{1, 2, 1}) && !slices.Equal(depths, []int{1, 1, 2}) || len(details[0].Causes) > 0 {
		b.Errorf("the effects are %+v, the causes %+v", details[0].Effects, details[0].Causes)
	}
	last := details[0].Effects[slices.Index(depths, 2)]
	details, err = client.Show(b.ctx, last.EventID)
	must(b.T, err)
	if causes := details[0].Causes; len(causes) != 2 || causes[0].EventID != first.EventID || causes[0].Depth != -2 {
		b.Errorf("the causes are %+v", causes)
	}
}

// republishBatch publishes an event for the one numbered 2, which it names as the cause.
type republishBatch struct {
	b  *bundle
	tx events.Tx
}

// HandleBatch implements events.BatchHandler.
func (r republishBatch) HandleBatch(ctx context.Context, batch []events.Envelope) error {
	if about := events.Delivery(ctx); len(batch) > 1 && about != (events.DeliveryInfo{}) {
		r.b.Errorf("a batch of %d is told %+v", len(batch), about)
	}
	for _, e := range batch {
		if payloadN(e) == 2 {
			return r.b.publishing.Publisher(r.tx).Publish(events.CausedBy(ctx, e), event(0))
		}
	}
	return nil
}
