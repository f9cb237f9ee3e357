package integration_test

import (
	"context"
	"testing"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func TestLive(t *testing.T) { setup(t).cases(liveFigures, viewersReadWhatOperatorsDo) }

// One statement tells what is due, failed and running, who works, and what is open.
func liveFigures(b *bundle) {
	client := b.operator()
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(_ context.Context, _ events.Tx, e events.Envelope) error {
			if payloadN(e) == 0 {
				return events.Terminal(errOnPurpose)
			}
			return nil
		}), effectHandler("worlds.two")))
	b.publish(event(0))
	l.awaitOutcome(dispatch.Failed)
	b.publish(event(1), event(2))
	l.awaitDelivered(2)
	must(b.T, client.TripHandler(b.ctx, b.generation, "platform.one", "anna", ""))
	b.publish(event(3), event(4))
	b.eventually("two wait", func() bool { return b.waiting() == 2 })
	live, err := client.Live(b.ctx)
	must(b.T, err)
	if len(live.Types) != 1 || len(live.Handlers) != 2 || len(live.Workers) != 1 || live.Failed != 1 {
		b.Fatalf("got %+v", live)
	}
	one, h := live.Types[0], live.Handlers[0]
	if one.EventType != happenedType || one.Failed != 1 || one.Waiting != 2 || one.Due != 0 || one.Workers != 1 {
		b.Errorf("the type: %+v", one)
	}
	if h.Handler != "platform.one" || h.Breaker != "forced" || h.Waiting != 2 || h.Workers != 1 {
		b.Errorf("the handler: %+v", h)
	}
	if w := live.Workers[0]; w.Generation != b.generation || w.Types != 1 {
		b.Errorf("the worker: %+v", w)
	}
}

// A viewer reads all that an operator reads, and can do nothing.
func viewersReadWhatOperatorsDo(b *bundle) {
	operators := b.operator()
	viewer := operators.As(operator.Viewer)
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errOnPurpose) })))
	e := event(0)
	b.publish(e)
	l.awaitOutcome(dispatch.Failed)
	page := operator.Page{Limit: 10}
	selected, err := viewer.Select(b.ctx, operator.Filter{}, 0)
	must(b.T, err)
	for name, read := range map[string]func() error{
		"live":        func() error { _, err := viewer.Live(b.ctx); return err },
		"find":        func() error { _, err := viewer.Find(b.ctx, operator.Filter{}, page); return err },
		"show":        func() error { _, err := viewer.Show(b.ctx, e.EventID); return err },
		"explain":     func() error { _, err := viewer.Explain(b.ctx, e.EventID); return err },
		"type":        func() error { _, err := viewer.ExplainType(b.ctx, happenedType); return err },
		"groups":      func() error { _, err := viewer.ErrorGroups(b.ctx, operator.GroupFilter{Limit: 10}, 0); return err },
		"handlers":    func() error { _, err := viewer.Handlers(b.ctx); return err },
		"operations":  func() error { _, err := viewer.Operations(b.ctx, 10); return err },
		"generations": func() error { _, err := viewer.Generations(b.ctx, nil); return err },
		"compare":     func() error { _, err := viewer.Compare(b.ctx, b.generation, b.generation, 3600e9); return err },
		"actions":     func() error { _, err := viewer.Actions(b.ctx, operator.ActionFilter{}, page); return err },
		"timeline":    func() error { _, err := viewer.Timeline(b.ctx, 3600e9, operator.Filter{}); return err },
		"pauses":      func() error { _, err := viewer.Pauses(b.ctx); return err },
		"shown":       func() error { _, err := viewer.Shown(b.ctx, selected, 10); return err },
		"relay":       func() error { _, err := viewer.Relay(b.ctx); return err },
		"preview": func() error {
			_, err := viewer.PreviewReplay(b.ctx, selected, b.generation, operator.Choice{}, true)
			return err
		},
		"count": func() error {
			_, err := viewer.Count(b.ctx, operator.Filter{}, operator.Count{By: operator.Dimensions(), Limit: 10})
			return err
		},
	} {
		if err := read(); operator.IsDenied(err) {
			b.Errorf("%s: %v", name, err)
		}
	}
	for name, act := range map[string]func() error{
		"apply": func() error {
			_, err := viewer.Apply(b.ctx, selected, operator.Discard("", ""), operator.Pace{})
			return err
		},
		"pause":   func() error { return viewer.Pause(b.ctx, happenedType, b.generation, "", "") },
		"handler": func() error { return viewer.TripHandler(b.ctx, b.generation, "platform.one", "", "") },
		"note":    func() error { return viewer.NoteGroup(b.ctx, "x", "y", "") },
		"correct": func() error {
			_, err := operators.Correct(b.ctx, e.EventID, e.OccurredAt, []byte("{}"), "", "")
			return err
		},
	} {
		if err := act(); !operator.IsDenied(err) {
			b.Errorf("%s is not denied: %v", name, err)
		}
	}
}
