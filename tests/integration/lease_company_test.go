package integration_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// hold locks one row of platform.contended for each of the numbers below n, until the connection rolls back.
func (b *bundle) hold(n int) (holder *pgx.Conn) {
	b.Helper()
	b.exec("create table platform.contended (n int primary key); grant all on platform.contended to spectral_platform")
	b.exec("insert into platform.contended select generate_series(0, $1::int - 1)", n)
	holder = pgtest.Conn(b.T, b.url)
	_, err := holder.Exec(b.ctx, "begin; select from platform.contended for update")
	must(b.T, err)
	return holder
}

// contend waits for the row of an event that hold has locked, if it has.
func contend(ctx context.Context, tx events.Tx, e events.Envelope) error {
	_, err := tx.Exec(ctx, "update platform.contended set n = n where n = $1", payloadN(e))
	return err
}

// Completions that wait for locks hold up one another, and nobody else.
func TestCompletionsThatWaitHoldUpNobodyElse(t *testing.T) {
	b := setup(t)
	const waiting, all = 4, 40
	holder := b.hold(waiting)
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(5*time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if err := contend(ctx, tx, e); err != nil {
				return err
			}
			return effect(worker1)(ctx, tx, e)
		}, g.pass(ctx)
	}))
	s.Concurrency = all
	l := b.listen(never, s)
	b.publishMany(all)
	g.awaitAll(t, all)
	g.letOn()
	l.delivered(all - waiting)
	if n := one[int](b, "select count(*) from core.outbox where status = 'in_flight'"); n != waiting {
		t.Errorf("%d wait, want %d", n, waiting)
	}
	_, err := holder.Exec(b.ctx, "rollback")
	must(t, err)
	l.delivered(waiting)
	b.wantEffects(map[string]int{worker1: all})
	b.wantLeasesKept(all)
}

// wantLeasesKept fails unless n events have been executed once each, and no lease has run out.
func (b *bundle) wantLeasesKept(n int) {
	b.Helper()
	if kept := one[int](b, "select count(*) from core.outbox where attempts = 1 and crashes = 0"); kept != n {
		b.Errorf("%d of %d kept their leases", kept, n)
	}
}

// A completion that fails is settled by itself afterwards; those beside it go on being settled together.
func TestAFailureLeavesTheOthersTogether(t *testing.T) {
	b := setup(t)
	const all, bad = 200, 10
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if payloadN(e)%(all/bad) == 0 {
				return events.Terminal(errRefusing)
			}
			return effect(worker1)(ctx, tx, e)
		}, g.pass(ctx)
	}))
	s.Concurrency = all
	l := b.listen(never, s)
	b.publishMany(all)
	g.awaitAll(t, all)
	g.letOn()
	failed := 0
	for range all {
		if l.next().Outcome == postgres.Failed {
			failed++
		}
	}
	if n := one[int](b, "select count(distinct xmin::text) from core.event_handled"); failed != bad || n > all/2 {
		t.Errorf("%d failed; the others were settled in %d transactions", failed, n)
	}
	b.wantEffects(map[string]int{worker1: all - bad})
}

// A completion that has no end has one: its handler's failure, that says why.
func TestAnEndlessCompletionIsCutOff(t *testing.T) {
	b := setup(t)
	b.hold(2)
	endless := executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error { return contend(ctx, tx, e) }, nil
	})
	endless.Retry = &events.RetryPolicy{Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	l := b.listen(never, leasing(3*time.Second, endless))
	e := event(1)
	b.publish(e)
	s := l.next()
	want := "TimeoutError: " + worker1 + ": completion: did not end within 1.5s (half of the lease); does it wait for a lock? ERROR: "
	if s.Outcome != postgres.Failed || len(s.LastError) < len(want) || s.LastError[:len(want)] != want {
		t.Fatalf("%+v", s)
	}
	if r := b.wantRow(e.EventID, "failed", 1); r.Failures[worker1].Class != "TimeoutError" {
		t.Fatalf("%+v", r)
	}
}

// Attempts count the dispatches in which something has run, also when all that ran was handled; and a handler that is
// parked is not said to be retried.
func TestAttemptsCountWhatRan(t *testing.T) {
	b := setup(t)
	log := new(notes)
	b.log = logTo(log)
	var tries atomic.Int32
	l := b.listen(never, leasing(time.Minute,
		executor(worker1, func(context.Context, events.Envelope) (events.Completion, error) {
			return nil, events.Terminal(errRefusing)
		}),
		executor(worker2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
			if tries.Add(1) <= 2 {
				return nil, errRefusing
			}
			return completion(worker2, e), nil
		})))
	e := event(1)
	b.publish(e)
	outcomes := make(map[postgres.Outcome]int)
	for range 3 { // in any order: what follows at once may be reported first
		s := l.next()
		if outcomes[s.Outcome]++; s.Outcome == postgres.Failed && s.Attempts != 3 {
			t.Errorf("%+v", s)
		}
	}
	if outcomes[postgres.Retried] != 2 || outcomes[postgres.Failed] != 1 {
		t.Errorf("%v", outcomes)
	}
	b.wantRow(e.EventID, "failed", 3)
	b.wantEffects(map[string]int{worker2: 1})
	for text, want := range map[string]int{
		fmt.Sprintf(`"handler_name":%q,"error_class":"TerminalError","attempts":1,"delay_ms"`, worker1): 1, // at first
		fmt.Sprintf(`"handler_name":%q,"error_class":"TerminalError","attempts":2`, worker1):            0,
		fmt.Sprintf(`"handler_name":%q,"error_class":"HandlerError","attempts":2`, worker2):             1,
		fmt.Sprintf(`"handler_name":%q,"error_class":"TerminalError","attempts":3`, worker1):            1, // as it fails
	} {
		if n := log.count(text); n != want {
			t.Errorf("%d times, want %d: %s", n, want, text)
		}
	}
}

// What could not be committed was not, whatever the worker had meant it to be.
func TestAVerdictThatIsNotCommitted(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	log := new(notes)
	b.log = logTo(log)
	e := event(1)
	var tries atomic.Int32
	l := b.listen(time.Second, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if tries.Add(1) > 1 {
			return completion(worker1, e), nil
		}
		expire := func() { b.expire(e.EventID) } // before it is tried again
		b.sockets.unsent.Store(&expire)
		return nil, events.Terminal(errRefusing)
	})))
	b.publish(e)
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 2)
	l.stop()
	for s := range len(l.settlements) {
		t.Errorf("settled also: %+v", s)
	}
	if n := log.count("event failed"); n > 0 {
		t.Errorf("%d times it is said that it failed", n)
	}
	if log.count(`"msg":"lease lost`) != 1 {
		t.Error("it is not said that the lease was lost")
	}
}

// Who settles a lease finds out alone whether it was lost: that the heartbeat does not find it any more may be its own
// doing, whose answer is lost for the time being.
func TestAnswersLostTwice(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	l := b.listen(time.Second, leasing(1200*time.Millisecond, completing(worker1))) // renewed while it waits to be tried again
	b.sockets.lostDeliveries.Store(2)
	b.publish(event(1))
	l.delivered(1)
	if n := b.sockets.lostDeliveries.Load(); n > 0 {
		t.Errorf("%d answers were not lost", n)
	}
	b.wantEffects(map[string]int{worker1: 1})
}
