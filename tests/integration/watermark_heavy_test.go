//go:build heavy

package integration_test

import (
	"context"
	"testing"

	"spectral/internal/core/events"
)

// While a session holds an old snapshot, settled rows stay in the index. Claims must not read past all of them.
func TestOldSnapshotDoesNotSlowClaims(t *testing.T) {
	b := setupSerial(t) // a long transaction of another test would hold the watermark
	const backlog = 10_000
	b.exec(`select core.outbox_publish_many(jsonb_agg(jsonb_build_object('event_type', 'worlds.test.happened', 'source',
		'worlds',
		'payload', jsonb_build_object('n', i)))) from generate_series(1, $1::int) i group by i / 1000`, backlog)
	old := b.conn()
	_, err := old.Exec(b.ctx, "begin isolation level repeatable read; select count(*) from core.outbox")
	must(t, err)
	read := func() int {
		b.exec("select pg_stat_clear_snapshot()")
		return one[int](b, "select idx_tup_read::int from pg_stat_user_indexes where indexrelname = 'outbox_due'")
	}
	before := read()
	s := subscription(handler("platform.one", func(context.Context, events.Tx, events.Envelope) error { return nil }))
	s.Concurrency = 1 // with two runners the watermark, and the figure, would vary
	l := b.startWorker(noPoll, s)
	l.awaitDelivered(backlog)
	l.stop()
	l.workers.Close()
	b.eventually("the end of its backends, which report their statistics", func() bool {
		return !one[bool](b, `select exists (select from pg_stat_activity where datname = current_database()
			and application_name in ('workers', 'notifier'))`)
	})
	perRow := float64(read()-before) / backlog
	t.Logf("%.1f index entries per row", perRow)
	if perRow > 6 || perRow < 1 {
		t.Fatalf("%.1f index entries were read per row", perRow)
	}
}
