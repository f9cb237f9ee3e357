package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// executor registers leased work under name, with quick retries.
func executor(name string, do events.ExecutorFunc) events.Registration {
	return events.Registration{Name: name, Retry: quickly, Executor: do}
}

// completing is leased work that does nothing but leave its effect.
func completing(name string) events.Registration {
	return executor(name, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return completion(name, e), nil
	})
}

// completion leaves the effect of a handler.
func completion(name string, e events.Envelope) events.Completion {
	return func(ctx context.Context, tx events.Tx) error { return effect(name)(ctx, tx, e) }
}

// leasing is a consumer of test events that works on eight at once.
func leasing(lease time.Duration, handlers ...events.Registration) events.Subscription {
	s := subscription(handlers...)
	s.Mode, s.Lease, s.Concurrency = events.Leased, lease, 8
	return s
}

const (
	worker1 = "platform.test_worker"
	worker2 = "worlds.test_worker"
)

func TestLeasedWorkIsSettledOnce(t *testing.T) {
	b := setup(t)
	l := b.listen(never, leasing(time.Minute, completing(worker1), completing(worker2)))
	for range 5 {
		b.publishMany(20)
	}
	l.delivered(100)
	b.wantEffects(map[string]int{worker1: 100, worker2: 100})
	if n := one[int](b, `select count(*) from core.outbox where status = 'delivered' and attempts = 1 and claim_token is null
		and claimed_by is null and lease_handler is null and delivered_at >= claimed_at`); n != 100 {
		t.Fatalf("%d of 100 rows are as they should be", n)
	}
}

func TestLeasedWorkRunsOutsideAnyTransaction(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	l := b.listen(never, leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion(worker1, e), g.pass(ctx)
	})))
	e := event(1)
	b.publish(e)
	g.awaitEntered(t)
	b.wantRow(e.EventID, "in_flight", 1)
	b.eventually("no transaction is open while the work goes on", func() bool {
		return one[int](b, `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'workers' and state <> 'idle'`) == 0
	})
	if h := one[string](b, "select lease_handler from core.outbox where id = $1", e.EventID); h != worker1 {
		t.Fatalf("at work is %q", h)
	}
	g.letOn()
	l.delivered(1)
	b.wantEffects(map[string]int{worker1: 1})
}

// Of several handlers the one that fails is retried, and only it.
func TestLeasedCoHandlersFailApart(t *testing.T) {
	b := setup(t)
	var tries, ran atomic.Int32
	l := b.listen(never, leasing(time.Minute,
		executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
			if tries.Add(1) <= 2 {
				return nil, errRefusing
			}
			return completion(worker1, e), nil
		}),
		executor(worker2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
			ran.Add(1)
			return completion(worker2, e), nil
		})))
	e := event(1)
	b.publish(e)
	attempts := make(map[int]postgres.Outcome)
	for range 3 { // in any order: what follows at once may be reported first
		s := l.next()
		attempts[s.Attempts] = s.Outcome
	}
	if attempts[1] != postgres.Retried || attempts[2] != postgres.Retried || attempts[3] != postgres.Delivered {
		t.Fatalf("%v", attempts)
	}
	b.wantRow(e.EventID, "delivered", 3)
	b.wantEffects(map[string]int{worker1: 1, worker2: 1})
	if ran.Load() != 1 {
		t.Fatalf("the handler that succeeded ran %d times", ran.Load())
	}
}

func TestLeasedFailures(t *testing.T) {
	for _, c := range []struct {
		name     string
		do       func(context.Context) error
		complete func(context.Context, events.Tx) error
		attempts int
		class    string
	}{
		{name: "an error", do: func(context.Context) error { return errRefusing }, attempts: 6, class: "HandlerError"},
		{name: "a terminal error", do: func(context.Context) error { return events.Terminal(errRefusing) }, attempts: 1, class: "TerminalError"},
		{name: "a panic", do: func(context.Context) error { panic("no") }, attempts: 6, class: "PanicError"},
		{name: "a timeout", do: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, attempts: 6, class: "TimeoutError"},
		{name: "a completion that fails", attempts: 6, class: "HandlerError",
			complete: func(context.Context, events.Tx) error { return errRefusing }},
		{name: "a completion that breaks a constraint", attempts: 1, class: "IntegrityError",
			complete: func(ctx context.Context, tx events.Tx) error {
				_, err := tx.Exec(ctx, "insert into platform.once values (1), (1)")
				return err
			}},
		{name: "a completion that breaks a deferred constraint", attempts: 1, class: "IntegrityError",
			complete: func(ctx context.Context, tx events.Tx) error {
				_, err := tx.Exec(ctx, "insert into platform.later values (1), (1)")
				return err
			}},
		{name: "a completion that swallows an error", attempts: 6, class: "AbortedTransaction",
			complete: func(ctx context.Context, tx events.Tx) error {
				_, _ = tx.Exec(ctx, "select 1 / 0")
				return nil
			}},
		{name: "a completion that ends the transaction", attempts: 6, class: "HandlerError",
			complete: func(ctx context.Context, tx events.Tx) error {
				_, err := tx.Exec(ctx, "/**/ commit")
				return err
			}},
		{name: "a completion that panics", attempts: 6, class: "PanicError",
			complete: func(context.Context, events.Tx) error { panic("no") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.exec(`create table platform.once (n int primary key); create table platform.later (n int primary key deferrable initially deferred);
				grant all on platform.once, platform.later to spectral_platform`)
			failing := executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
				if c.do != nil {
					return nil, c.do(ctx)
				}
				return func(ctx context.Context, tx events.Tx) error {
					if err := effect(worker1)(ctx, tx, e); err != nil {
						return err
					}
					return c.complete(ctx, tx)
				}, nil
			})
			failing.Timeout = 500 * time.Millisecond
			l := b.listen(never, leasing(time.Minute, failing))
			e := event(1)
			b.publish(e)
			failed := 0
			for range c.attempts { // two that follow closely may be reported in either order
				if l.next().Outcome == postgres.Failed {
					failed++
				}
			}
			r := b.wantRow(e.EventID, "failed", c.attempts)
			if failed != 1 || r.Failures[worker1].Class != c.class || !r.Failures[worker1].Parked {
				t.Fatalf("failed %d times, %+v", failed, r)
			}
			if n := one[int](b, "select count(*) from platform.effects"); n > 0 || len(b.handledBy(e.EventID.String())) > 0 {
				t.Fatal("its writes are kept")
			}
		})
	}
}

// One that goes on after its timeout is left behind, and its place is free again.
func TestLeasedWorkThatIgnoresItsContextIsAbandoned(t *testing.T) {
	b := setup(t)
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	heedless := executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if string(e.Payload) == `{"n": 13}` {
			<-forever
		}
		return completion(worker1, e), nil
	})
	heedless.Timeout, heedless.Retry = 100*time.Millisecond, &events.RetryPolicy{Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	s := leasing(time.Minute, heedless)
	s.Concurrency = 1
	l := b.listen(never, s)
	bad, good := event(13), event(1)
	b.publish(bad, good)
	var outcomes []postgres.Outcome
	for range 2 {
		outcomes = append(outcomes, l.next().Outcome)
	}
	if fmt.Sprint(outcomes) != "[failed delivered]" {
		t.Fatal(outcomes)
	}
	if r := b.wantRow(bad.EventID, "failed", 1); r.Failures[worker1].Class != "TimeoutError" {
		t.Fatalf("%+v", r)
	}
}

// A key that is handled already is not worked on again, and neither completed.
func TestLeasedWorkThatIsHandledIsNotExecuted(t *testing.T) {
	b := setup(t)
	var ran atomic.Int32
	l := b.listen(never, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		ran.Add(1)
		return completion(worker1, e), nil
	})))
	first, second := event(1), event(2)
	first.IdempotencyKey, second.IdempotencyKey = "same", "same"
	b.publish(first)
	l.delivered(1)
	b.publish(second)
	l.delivered(1)
	b.wantRow(second.EventID, "delivered", 1)
	b.wantEffects(map[string]int{worker1: 1})
	if ran.Load() != 1 {
		t.Fatalf("executed %d times", ran.Load())
	}
}

// Twins that are worked on at once: whoever settles second concedes.
func TestLeasedTwinsHaveOneEffect(t *testing.T) {
	b := setup(t)
	g := newGate()
	l := b.listen(never, leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion(worker1, e), g.pass(ctx)
	})))
	var twins []events.Envelope
	for n := range 6 {
		e := event(n)
		e.IdempotencyKey = "same"
		twins = append(twins, e)
	}
	b.publish(twins...)
	g.awaitAll(t, len(twins))
	g.letOn()
	l.delivered(len(twins))
	b.wantEffects(map[string]int{worker1: 1})
}

// A lease goes on for as long as the work does.
func TestLeasesAreRenewed(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	l := b.listen(time.Second, leasing(1500*time.Millisecond, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion(worker1, e), g.pass(ctx)
	})))
	e := event(1)
	b.publish(e)
	g.awaitEntered(t)
	leased := one[time.Time](b, "select claimed_at from core.outbox where id = $1", e.EventID)
	b.eventually("more than two lengths of the lease pass", func() bool {
		return one[bool](b, "select claimed_at > $2::timestamptz + interval '4 s' from core.outbox where id = $1", e.EventID, leased)
	})
	g.letOn()
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 1)
	if len(g.entered) > 0 {
		t.Fatal("it was worked on twice")
	}
}

// Stopping gives back what does not end in time, and counts nothing.
func TestStoppingReleasesLeases(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	causes := make(chan error, 8)
	l := b.newListener(never, pgtest.Generation, leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		err := g.pass(ctx)
		causes <- context.Cause(ctx)
		return completion(worker1, e), err
	})))
	l.start()
	all := b.publishMany(3)
	g.awaitAll(t, len(all))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Stop(ctx); err == nil {
		t.Fatal("nothing is said of what was cut off")
	}
	for _, e := range all {
		if cause := within(t, causes); !errors.Is(cause, events.ErrStopping) {
			t.Fatalf("the work was told %v", cause)
		}
		b.wantRow(e.EventID, "pending", 0)
		if s := l.next(); s.Outcome != postgres.Released {
			t.Fatalf("%+v", s)
		}
	}
	next := b.listen(never, leasing(time.Minute, completing(worker1)))
	next.delivered(len(all))
	b.wantEffects(map[string]int{worker1: 3})
}

// within awaits what is sent.
func within[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return v
}

// Whoever settles under a lease that is over writes nothing: neither its effect nor the key.
func TestALoserOfItsLeaseWritesNothing(t *testing.T) {
	b := setup(t)
	var tries atomic.Int32
	l := b.listen(time.Second, leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		n := tries.Add(1)
		if n == 1 {
			if _, err := b.pool.Exec(ctx, expireSQL, e.EventID); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "insert into platform.effects values ($1, $2, $3, $4)", worker1, e.IdempotencyKey, e.EventID, n)
			return err
		}, nil
	})))
	e := event(1)
	b.publish(e)
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 2)
	if by := one[string](b, "select string_agg(n::text, ', ') from platform.effects"); by != "2" {
		t.Fatalf("the effect is that of execution %s", by)
	}
}

// expire lets the lease of an event have run out.
func (b *bundle) expire(id uuid.UUID) {
	b.Helper()
	b.exec(expireSQL, id)
}

const expireSQL = "update core.outbox set lease_seconds = 1e-6 where id = $1"

// Whoever has lost its lease is told so by the database, long before its own clock says that the lease must be over.
func TestALostLeaseIsFoundOut(t *testing.T) {
	b := setup(t)
	began := time.Now()
	b.now = func() time.Time { return began.Add(time.Since(began) / 100) } // of the worker
	causes := make(chan error, 1)
	g := newGate()
	var tries atomic.Int32
	l := b.listen(never, leasing(3*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if tries.Add(1) > 1 {
			return completion(worker1, e), nil
		}
		g.entered <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, ctx.Err()
	})))
	b.publish(event(1))
	g.awaitEntered(t)
	b.exec("update core.outbox set lease_seconds = 1e-6")
	b.exec("select core.outbox_reap()")
	l.delivered(1)
	if cause := within(t, causes); !errors.Is(cause, events.ErrLeaseLost) {
		t.Fatalf("the work was told %v", cause)
	}
}

// Whoever has lost its lease is told so, and what it brings is dropped; the row is another's.
func TestALostLease(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	causes := make(chan error, 2)
	var tries atomic.Int32
	l := b.listen(time.Second, leasing(3*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if tries.Add(1) > 1 {
			return completion(worker1, e), nil
		}
		g.entered <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-g.open
		return completion(worker1, e), nil // as if nothing had happened
	})))
	e := event(1)
	b.publish(e)
	g.awaitEntered(t)
	b.expire(e.EventID)
	l.delivered(1)
	if cause := within(t, causes); !errors.Is(cause, events.ErrLeaseLost) {
		t.Fatalf("the work was told %v", cause)
	}
	g.letOn()
	l.stop()
	r := b.wantRow(e.EventID, "delivered", 2)
	if want := "LeaseExpired: " + worker1; r.LastError[:len(want)] != want {
		t.Fatal(r.LastError)
	}
	b.wantEffects(map[string]int{worker1: 1})
	if reason := one[string](b, "select failure_history -> 0 ->> 'reason' from core.outbox where id = $1", e.EventID); reason != r.LastError {
		t.Fatalf("history says %q", reason)
	}
	if len(l.settlements) > 0 {
		t.Fatalf("settled again: %+v", <-l.settlements)
	}
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
