//go:build heavy

package integration_test

import (
	"context"
	"testing"
	"time"

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
	for {
		s := l.nextSettlement()
		if s.Envelope.EventID == free.EventID {
			wantDelivered(t, s)
			break
		}
		if s.Outcome != dispatch.Retried || s.Attempts != 0 {
			t.Fatalf("waiting for a key cost an attempt: %+v", s)
		}
	}
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
	ctx, cancel := context.WithTimeout(b.ctx, testTimeout)
	defer cancel()
	must(t, l.Health().Await(ctx, notify.Listening))
	b.eventually("the worker marks the other as gone", func() bool {
		return one[bool](b, "select exists (select from core.workers where gone_at < clock_timestamp() - interval '4 "+
			"seconds')")
	})
	b.publish(event(3))
	l.awaitDelivered(1) // it has polled since
	b.wantRow(other.EventID, "pending", 0)
}
