package integration_test

import (
	"context"
	"testing"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

func TestLive(t *testing.T) { setup(t).cases(liveFigures) }

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
