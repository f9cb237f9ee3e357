//go:build heavy

package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/notify"
)

// A key held for longer than a batch may wait concerns its own row only, and costs no attempt.
func TestAKeyThatStaysTakenDelaysItsOwnRowOnly(t *testing.T) {
	b := setup(t)
	held, free := event(1), event(2)
	holder := b.conn()
	_, err := holder.Exec(b.ctx, fmt.Sprintf(`begin; insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		values ('platform.one', '%s', gen_random_uuid(), 'worlds.test.happened', 'operational')`, held.EventID))
	must(t, err)
	b.publish(held, free)
	h := leaving("platform.one")
	h.Timeout = time.Second
	l := b.listen(noPoll, subscription(h))
	for {
		s := l.next()
		if s.Envelope.EventID == free.EventID {
			wantDelivered(t, s)
			break
		}
		if s.Outcome != dispatch.Retried || s.Attempts != 0 {
			t.Fatalf("waiting for a key cost an attempt: %+v", s)
		}
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(t, err)
	l.until(dispatch.Delivered)
	b.wantRow(held.EventID, "delivered", 1)
}

// When the database was away for all, a worker that lost its session with it does not reap at once on its return.
func TestAWorkerThatLostItsSessionDoesNotReapAtOnce(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	l.delivered(1)
	b.exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'notifier' and datname = current_database()`)
	other := event(2)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.died(other.EventID) // first: the listener may be back, and look, at any time
	b.exec("update core.claim_journal set claimed_at = claimed_at + interval '1 minute' where ids = array[$1::uuid]", other.EventID)
	b.publish(other)
	b.exec("alter table core.outbox enable trigger outbox_notify")
	ctx, cancel := context.WithTimeout(b.ctx, testTimeout)
	defer cancel()
	must(t, l.Health().Await(ctx, notify.Listening))
	b.eventually("it sees that the other is gone", func() bool {
		return one[bool](b, "select exists (select from core.workers where gone_at < clock_timestamp() - interval '4 seconds')")
	})
	b.publish(event(3))
	l.delivered(1) // has looked since
	b.wantRow(other.EventID, "pending", 0)
}
