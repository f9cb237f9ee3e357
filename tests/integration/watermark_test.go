package integration_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestClaimWatermark runs cases that share a database.
func TestClaimWatermark(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"a sample is above every earlier transaction":    aSampleIsAboveEveryEarlierTransaction,
		"adopted events are found":                       adoptedEventsAreFound,
		"a late commit is picked up":                     aLateCommitIsPickedUp,
		"a row below the watermark is found by the poll": aRowBelowTheWatermarkIsFoundByThePoll,
		"the watermark never passes what is pending":     theWatermarkNeverPassesWhatIsPending,
	})
}

// A transaction that inserts, waits and commits is picked up at once, however far the others have
// come since.
func aLateCommitIsPickedUp(b *bundle) {
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	late := b.conn()
	_, err := late.Exec(b.ctx, "begin; select core.outbox_publish('worlds.test.happened', 'worlds', '{\"n\": 1}')")
	must(b.T, err)
	for n := range 20 {
		b.publish(event(n))
		l.delivered(1)
	}
	b.commit(late)
	l.delivered(1)
}

// A sample's id is above every id that was given out before its time, also of transactions that a
// snapshot does not know of yet because none after them has ended.
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
	var stamped, markAt time.Time
	must(b.T, late.QueryRow(b.ctx, "select available_at from core.outbox").Scan(&stamped))
	var markID, running int64
	must(b.T, worker.QueryRow(b.ctx, "select sampled_at, sample_id, lowest_running from core.outbox_watermark(1, 'worlds.test.happened', '-infinity')").
		Scan(&markAt, &markID, &running))
	if markAt.Before(stamped) || markID <= id || running > lowest {
		b.Fatalf("sample %d at %s with %d running, beside an event of transaction %d at %s, and %d", markID, markAt, running, id, stamped, lowest)
	}
	_, err = worker.Exec(b.ctx, "select core.outbox_watermark(1, 'worlds.test.happened', '-infinity')")
	if err == nil {
		b.Fatal("a sample was taken in a transaction that has its id already")
	}
}

// What a full poll is for: a row inserted by hand, or a clock set back.
func aRowBelowTheWatermarkIsFoundByThePoll(b *bundle) {
	l := b.listen(100*time.Millisecond, subscription(leaving("platform.one")))
	for n := range 20 {
		b.publish(event(n))
		l.delivered(1)
	}
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, available_at)
		values ('worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"n": 9000}', 'by hand', clock_timestamp() - interval '1 hour')`)
	// notifications that come all the time must not keep it from looking
	for n := 0; ; n++ {
		b.publish(event(n))
		if string(l.next().Envelope.Payload) == `{"n": 9000}` {
			return
		}
		if n == 3000 {
			b.Fatal("notifications keep it from being found")
		}
	}
}

// A row that was let go of is pending as before: the watermark never passes it.
func theWatermarkNeverPassesWhatIsPending(b *bundle) {
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	held := event(0)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.publish(held)
	holder := b.conn()
	_, err := holder.Exec(b.ctx, "begin; select from core.outbox for update")
	must(b.T, err)
	b.exec("alter table core.outbox enable trigger outbox_notify")
	for n := range 20 {
		b.publish(event(n))
		l.delivered(1)
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(b.T, err)
	b.publish(event(-1))
	l.delivered(2)
}
