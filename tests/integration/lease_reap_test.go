package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// The reaper knows no policy: a handler whose workers died too often is failed at the next claim, without
// running, and without another attempt.
func TestLeasesThatRanOutTooOften(t *testing.T) {
	b := setup(t)
	var ran atomic.Int32
	s := leasing(time.Minute, executor(worker1, func(context.Context, events.Envelope) (events.Completion, error) {
		ran.Add(1)
		return nil, nil
	}))
	e := event(1)
	b.publish(e)
	for n := range 6 {
		b.exec("select core.outbox_lease($1, $2, p_handlers => array[$3], p_worker => gen_random_uuid()::text)", pgtest.Generation, happenedType, worker1)
		b.expire(e.EventID)
		if charged := one[bool](b, "select charged from core.outbox_reap()"); !charged {
			t.Fatalf("the lease %d that ran out was not charged", n+1)
		}
	}
	l := b.listen(never, s)
	l.until(postgres.Failed)
	r := b.wantRow(e.EventID, "failed", 6)
	if ran.Load() > 0 || !strings.HasPrefix(r.LastError, "LeaseExpired: "+worker1+": ") || !r.Failures[worker1].Parked {
		t.Fatalf("ran %d times, %+v", ran.Load(), r)
	}
}

// Rows that a worker died of do not run all at once, and all run.
func TestRowsThatWorkersDiedOfRunInSmallCompany(t *testing.T) {
	b := setup(t)
	all := b.publishMany(24)
	b.exec("update core.outbox set crashes = 1")
	var at, most atomic.Int32
	pass := make(chan struct{})
	l := b.listen(never, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		n := at.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		if n == 4 {
			select {
			case <-pass:
			default:
				close(pass) // as many as there may be
			}
		}
		<-pass
		at.Add(-1)
		return completion(worker1, e), nil
	})))
	l.delivered(len(all))
	if most.Load() != 4 {
		t.Fatalf("%d at once of eight", most.Load())
	}
}

// Rows whose lease ran out and that cannot be written keep nobody else waiting, and are said. There are more
// of them than the reaper takes at once.
func TestUnreapableLeases(t *testing.T) {
	b := setup(t)
	said := new(notes)
	b.log = logTo(said)
	const bad, good = 120, 30
	b.publishMany(bad + good)
	b.exec("select core.outbox_lease($1, $2, 1000, p_lease => 0.001)", pgtest.Generation, happenedType)
	b.exec(fmt.Sprintf(`alter table core.outbox add constraint refusing check ((payload ->> 'n')::integer >= %d or status = 'in_flight')`, bad))
	l := b.listen(never, leasing(time.Minute, completing(worker1)))
	l.delivered(good)
	b.eventually("it is said", func() bool { return said.count("its row cannot be written") >= 20 })
	b.exec("alter table core.outbox drop constraint refusing")
	l.delivered(bad)
	b.wantEffects(map[string]int{worker1: bad + good})
}

// The log of whoever notices says what a dead worker had in flight.
func TestTheLogSaysWhatADeadWorkerHadInFlight(t *testing.T) {
	b := setup(t)
	log := &notes{}
	b.log = logTo(log)
	e := event(1)
	b.publish(e)
	dead := uuid.New()
	b.exec("insert into core.workers (worker_id, session_id, generation, name, handlers) values ($1, $1, 1, 'killed', '{}')", dead)
	b.exec("select core.outbox_lease(1, $1, p_worker => $2)", happenedType, dead.String()+" killed")
	b.listen(never, leasing(time.Minute, completing(worker1)))
	b.eventually("the worker is noticed", func() bool { return log.count(`"lost_worker":"killed"`) > 0 })
	if log.count(`"in_hand":["`+e.EventID.String()) != 1 {
		t.Error("the log does not say what it had in flight")
	}
}
