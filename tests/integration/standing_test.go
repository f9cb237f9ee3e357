package integration_test

import (
	"log/slog"
	"testing"

	"spectral/tests/pgtest"
)

// A worker whose generation has come to its end says that it is of no use, once, when it looks: each minute, and when it
// listens anew.
func TestAWorkerOfNoUseSaysSo(t *testing.T) {
	b := setup(t)
	logged := &notes{}
	b.log = slog.NewTextHandler(logged, nil)
	l := b.listen(never, subscription(leaving("platform.one")))
	b.publish(event(1))
	l.delivered(1)
	const drained, retired = "is drained, and has nothing left", "is retired: it is of no use"
	again := func(listening int) {
		t.Helper()
		b.exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'doorbell' and datname = current_database()`)
		b.eventually("it listens again", func() bool { return logged.count("msg=listening") == listening })
	}
	again(2)
	b.exec("update core.deployments set status = 'draining', draining_at = now() where generation = $1", pgtest.Generation)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	e := event(2)
	b.publish(e)
	b.exec("update core.outbox set available_at = now() + interval '1 hour' where id = $1", e.EventID)
	again(3)
	b.exec("delete from core.outbox where id = $1", e.EventID)
	again(4)
	b.eventually("it says that its generation is drained", func() bool { return logged.count(drained) == 1 })
	again(5)
	b.exec("update core.deployments set status = 'retired', retired_at = now() where generation = $1", pgtest.Generation)
	again(6)
	b.eventually("it says that its generation is retired", func() bool { return logged.count(retired) == 1 })
	if n := logged.count(drained); n != 1 {
		t.Errorf("it said %d times that its generation is drained", n)
	}
}
