package integration_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestClaimWatermark(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"a sample is above every earlier transaction":    aSampleIsAboveEveryEarlierTransaction,
		"adopted events are found":                       adoptedEventsAreFound,
		"a late commit is delivered":                     aLateCommitIsDelivered,
		"a row below the watermark is found by the poll": aRowBelowTheWatermarkIsFoundByThePoll,
		"the watermark stays below pending rows":         theWatermarkStaysBelowPendingRows,
	})
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

// A sample's id is above every transaction id given out before its time, including those that no snapshot has yet.
func aSampleIsAboveEveryEarlierTransaction(b *bundle) {
	xid := func(conn *pgx.Conn) (id int64) {
		must(b.T, conn.QueryRow(b.ctx, "select pg_current_xact_id()::text::bigint").Scan(&id))
		return id
	}
	begin := func() *pgx.Conn {
		conn := b.conn()
		_, err := conn.Exec(b.ctx, "begin")
		must(b.T, err)
		return conn
	}
	long, late, worker := begin(), begin(), begin()
	lowest := xid(long)
	_, err := late.Exec(b.ctx, "select core.outbox_publish('worlds.test.happened', 'worlds', '{\"n\": 1}')")
	must(b.T, err)
	id := xid(late)
	var stamped, sampledAt time.Time
	must(b.T, late.QueryRow(b.ctx, "select available_at from core.outbox").Scan(&stamped))
	var sampleID, running int64
	must(b.T, worker.QueryRow(b.ctx,
		"select sampled_at, sample_id, lowest_running from core.outbox_watermark(1, 'worlds.test.happened', '-infinity')").
		Scan(&sampledAt, &sampleID, &running))
	if sampledAt.Before(stamped) || sampleID <= id || running > lowest {
		b.Fatalf("sample %d at %s with %d running, beside an event of transaction %d at %s, and %d", sampleID, sampledAt,
			running, id, stamped, lowest)
	}
	_, err = worker.Exec(b.ctx, "select core.outbox_watermark(1, 'worlds.test.happened', '-infinity')")
	if err == nil {
		b.Fatal("a sample was taken in a transaction that already had an id")
	}
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
