package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// TestReapedLeases runs cases that share a database.
func TestReapedLeases(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"leases that ran out too often":                      leasesThatRanOutTooOften,
		"leased rows that workers died of run one at a time": leasedRowsThatWorkersDiedOfRunOneAtATime,
		"unreapable leases":                                  unreapableLeases,
	})
}

// A leased event whose workers died of it five times is failed, without running again.
func leasesThatRanOutTooOften(b *bundle) {
	e := event(1)
	b.publish(e)
	for range 5 {
		b.exec("update core.outbox set available_at = clock_timestamp()")
		b.exec("select core.outbox_lease($1, $2, p_handlers => array[$3], p_worker => gen_random_uuid()::text)", pgtest.Generation, happenedType, worker1)
		b.expire(e.EventID)
		b.exec("select core.outbox_reap()")
	}
	if r := b.wantRow(e.EventID, "failed", 5); !strings.HasPrefix(r.LastError, "LeaseExpired: "+worker1+": ") {
		b.Fatalf("%+v", r)
	}
}

// Rows that workers died of run one at a time in a process, beside others, and all run.
func leasedRowsThatWorkersDiedOfRunOneAtATime(b *bundle) {
	all := b.publishMany(9)
	b.exec("update core.outbox set crashes = 1")
	var at, most atomic.Int32
	l := b.listen(noPoll, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if n := at.Add(1); n > most.Load() {
			most.Store(n)
		}
		at.Add(-1)
		return completion(worker1, e), nil
	})))
	l.delivered(len(all))
	if most.Load() != 1 {
		b.Fatalf("%d at once", most.Load())
	}
}

// Rows whose lease ran out and that cannot be written keep no other waiting, and are said. There are more
// of them than the reaper takes at once.
func unreapableLeases(b *bundle) {
	said := new(notes)
	b.log = logTo(said)
	const bad, good = 120, 30
	b.publishMany(bad + good)
	b.exec("select core.outbox_lease($1, $2, 1000, p_lease => 0.001)", pgtest.Generation, happenedType)
	b.exec(fmt.Sprintf(`alter table core.outbox add constraint refusing check ((payload ->> 'n')::integer >= %d or status = 'in_flight')`, bad))
	l := b.listen(noPoll, leasing(time.Minute, completing(worker1)))
	l.delivered(good)
	b.eventually("it is said", func() bool { return said.count("its row cannot be written") >= 20 })
	b.exec("alter table core.outbox drop constraint refusing")
	l.delivered(bad)
	b.wantEffects(map[string]int{worker1: bad + good})
}
