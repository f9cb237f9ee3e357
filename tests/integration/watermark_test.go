package integration_test

import (
	"testing"
	"time"
)

func TestClaimWatermark(t *testing.T) {
	setup(t).cases(aLateCommitIsDelivered, aRowBelowTheWatermarkIsFoundByThePoll, adoptedEventsAreFound,
		theWatermarkStaysBelowPendingRows)
}

// A transaction that inserts, waits and commits is delivered at once, however many events were delivered before.
func aLateCommitIsDelivered(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	late := b.conn()
	_, err := late.Exec(b.ctx, "begin; select core.outbox_publish('worlds.test.happened', 'worlds', '{\"n\": 1}')")
	must(b.T, err)
	for n := range 20 {
		b.publish(event(n))
		l.awaitDelivered(1)
	}
	b.commit(late)
	l.awaitDelivered(1)
}

// A row inserted by hand, or after the clock was set back, is below the watermark.
func aRowBelowTheWatermarkIsFoundByThePoll(b *bundle) {
	l := b.startWorker(100*time.Millisecond, subscription(effectHandler("platform.one")))
	for n := range 20 {
		b.publish(event(n))
		l.awaitDelivered(1)
	}
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload,
		idempotency_key, available_at)
		values ('worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"n": 9000}', 'by hand',
			clock_timestamp() - interval '1 hour')`)
	// Steady notifications must not keep the worker from a full poll.
	for n := 0; ; n++ {
		b.publish(event(n))
		if string(l.nextSettlement().Envelope.Payload) == `{"n": 9000}` {
			return
		}
		if n == 3000 {
			b.Fatal("the row was not found among 3000 notifications")
		}
	}
}

func theWatermarkStaysBelowPendingRows(b *bundle) {
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	held := event(0)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.publish(held)
	holder := b.beginTx("select from core.outbox for update")
	b.exec("alter table core.outbox enable trigger outbox_notify")
	for n := range 20 {
		b.publish(event(n))
		l.awaitDelivered(1)
	}
	b.rollback(holder)
	b.publish(event(-1))
	l.awaitDelivered(2)
}
