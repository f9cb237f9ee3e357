package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// gated is leased work that waits at a gate before it leaves its effect.
func gated(name string, g *gate) events.Registration {
	return executor(name, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion(name, e), g.pass(ctx)
	})
}

// No more rows are in flight than the consumer can work on.
func TestLeasedConcurrencyIsBounded(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 3
	l := b.listen(never, s)
	b.publishMany(30)
	g.awaitAll(t, 3)
	for range 20 {
		b.publish(event(100)) // each rings
	}
	b.eventually("the listener has looked since", func() bool { return l.quiet() })
	if n := one[int](b, "select count(*) from core.outbox where status = 'in_flight'"); n != 3 || len(g.entered) > 0 {
		t.Fatalf("%d in flight, %d more at work", n, len(g.entered))
	}
	g.letOn()
	l.delivered(50)
}

// Nor later, as places become free.
func TestLeasedConcurrencyIsKept(t *testing.T) {
	b := setup(t)
	var at, most atomic.Int32
	s := leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		n := at.Add(1)
		defer at.Add(-1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		_, err := b.pool.Exec(ctx, "select pg_sleep(random() / 50)") // no two end together
		return completion(worker1, e), err
	}))
	s.BatchSize = 20
	l := b.listen(never, s)
	all := b.publishMany(200)
	l.delivered(len(all))
	if n := int(most.Load()); n != s.Concurrency {
		t.Fatalf("%d at once, want %d", n, s.Concurrency)
	}
}

// quiet reports whether the LISTEN connection waits for notifications and no other is at work.
func (l *listening) quiet() bool {
	return one[bool](l.bundle, `select count(*) filter (where state <> 'idle') = 0 from pg_stat_activity
		where datname = current_database() and application_name in ('workers', 'doorbell')`)
}

// What ends together is settled together.
func TestLeasedWorkIsSettledInBatches(t *testing.T) {
	b := setup(t)
	g := newGate()
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 200
	l := b.listen(never, s)
	all := b.publishMany(200)
	g.awaitAll(t, len(all))
	g.letOn()
	l.delivered(len(all))
	b.wantEffects(map[string]int{worker1: len(all)})
	transactions := one[int](b, "select count(distinct xmin::text) from core.event_handled")
	rows := one[int](b, "select max(n) from (select count(*)::int as n from core.event_handled group by xmin::text) s")
	if transactions > len(all)/4 || rows > 100 {
		t.Fatalf("%d rows in %d transactions, %d in the largest", len(all), transactions, rows)
	}
}

// One whose completion fails costs those beside it nothing.
func TestALeasedFailureAmongOthers(t *testing.T) {
	b := setup(t)
	g := newGate()
	failing := executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if err := effect(worker1)(ctx, tx, e); err != nil || payloadN(e)%10 != 0 {
				return err
			}
			return events.Terminal(errRefusing)
		}, g.pass(ctx)
	})
	s := leasing(time.Minute, failing)
	s.Concurrency = 50
	l := b.listen(never, s)
	all := b.publishMany(50)
	g.awaitAll(t, len(all))
	g.letOn()
	for range all {
		s := l.next()
		if want := payloadN(s.Envelope)%10 == 0; (s.Outcome == postgres.Failed) != want || s.Attempts != 1 {
			t.Fatalf("event %d: %+v", payloadN(s.Envelope), s)
		}
	}
	b.wantEffects(map[string]int{worker1: 45})
	if n := one[int](b, "select count(*) from core.event_handled"); n != 45 {
		t.Fatalf("%d handled", n)
	}
}

// A completion acts as its context, for its event's workspace, and leaves neither behind.
func TestACompletionActsAsItsContext(t *testing.T) {
	b := setup(t)
	b.exec("create table platform.acted (n int, role text, workspace text); grant all on platform.acted to spectral_platform")
	w := uuid.New()
	acting := executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, `insert into platform.acted values ($1, current_user, current_setting('spectral.workspace_id'))`, payloadN(e))
			if err == nil && payloadN(e) == 0 {
				_, err = tx.Exec(ctx, "set search_path = public") // of the session
			}
			return err
		}, nil
	})
	s := leasing(time.Minute, acting)
	b.poolURL += "&pool_max_conns=1"
	l := b.listen(never, s)
	var all []events.Envelope
	for n := range 8 {
		e := event(n)
		if n%2 == 0 {
			e.WorkspaceID = uuid.NullUUID{UUID: w, Valid: true}
		}
		all = append(all, e)
	}
	b.publish(all...)
	l.delivered(len(all))
	for n := range all {
		want := "spectral_platform "
		if n%2 == 0 {
			want += w.String()
		}
		if got := one[string](b, "select string_agg(role || ' ' || workspace, ', ') from platform.acted where n = $1", n); got != want {
			t.Errorf("event %d acted as %q, want %q", n, got, want)
		}
	}
	l.wantLogin("all of them")
	if path := one[string](&bundle{T: t, ctx: b.ctx, pool: l.workers}, "select current_setting('search_path')"); strings.Contains(path, "public") && !strings.Contains(path, "$user") {
		t.Errorf("the session's search_path is still %q", path)
	}
}

// An answer that is lost costs nothing: neither the one to the claim, nor the one to settling.
func TestLostAnswersToLeases(t *testing.T) {
	for _, c := range []struct {
		name string
		lose string
	}{
		{"the claim's", "claim"}, {"a delivery's", "deliver"}, {"a co-handler's", "keep"}, {"a retry's", "retry"}, {"a failure's", "fail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.sockets = new(sockets)
			log := new(notes)
			b.log = logTo(log)
			var first, second atomic.Int32
			s := leasing(time.Minute,
				executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
					n := first.Add(1)
					b.sockets.lostReply.Store(c.lose == "keep" || n == 1 && (c.lose == "retry" || c.lose == "fail"))
					switch {
					case c.lose == "retry" && n == 1:
						return nil, errRefusing
					case c.lose == "fail":
						return nil, events.Terminal(errRefusing)
					default:
						return completion(worker1, e), nil
					}
				}),
				executor(worker2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
					second.Add(1)
					b.sockets.lostReply.Store(c.lose == "deliver")
					return completion(worker2, e), nil
				}))
			if c.lose == "retry" || c.lose == "fail" {
				s.CoHandlers = nil
			}
			l := b.listen(never, s)
			b.sockets.lostReply.Store(c.lose == "claim")
			e := event(1)
			b.publish(e)
			defer func() {
				if b.sockets.lostReply.Load() {
					t.Error("no answer was lost")
				}
				if n := log.count("not recorded") + log.count("lease lost"); n > 0 {
					t.Errorf("%d times it is said that it was not written", n)
				}
				if c.lose != "claim" && log.count(`"msg":"settling interrupted, no attempt counted"`) == 0 || log.count(`"error_class":"HandlerError","reason"`) > 0 {
					t.Error("it is not said that the connection was lost")
				}
			}()
			switch c.lose {
			case "fail":
				l.until(postgres.Failed)
				b.wantRow(e.EventID, "failed", 1)
				b.wantEffects(map[string]int{})
				return
			case "retry":
				// the retry may be over before it is known that there was one
				if all := []postgres.Outcome{l.next().Outcome, l.next().Outcome}; !slices.Contains(all, postgres.Retried) || !slices.Contains(all, postgres.Delivered) {
					t.Fatalf("%v", all)
				}
				b.wantRow(e.EventID, "delivered", 2)
				b.wantEffects(map[string]int{worker1: 1})
				return
			}
			l.delivered(1)
			b.wantRow(e.EventID, "delivered", 1)
			b.wantEffects(map[string]int{worker1: 1, worker2: 1})
			if b.sockets.lostReply.Load() || first.Load() != 1 || second.Load() != 1 {
				t.Fatalf("executed %d and %d times, lost: %t", first.Load(), second.Load(), !b.sockets.lostReply.Load())
			}
		})
	}
}

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

// What a handler has failed is recorded also when the worker stops before the next one has ended.
func TestAFailureOutlastsAStop(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	l := b.newListener(never, pgtest.Generation, leasing(time.Minute,
		executor(worker1, func(context.Context, events.Envelope) (events.Completion, error) {
			return nil, events.Terminal(errRefusing)
		}),
		gated(worker2, g)))
	l.start()
	e := event(1)
	b.publish(e)
	g.awaitEntered(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Stop(ctx)
	r := b.wantRow(e.EventID, "pending", 1)
	if f := r.Failures[worker1]; !f.Parked || len(r.Failures) != 1 {
		t.Fatalf("%+v", r)
	}
}

// A claim that ends because of its size is not taken for the end of what there is.
func TestLargeEventsFillEveryPlace(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 40
	l := b.listen(never, s)
	var all []events.Envelope
	for range 40 {
		e := event(1)
		e.Payload = []byte(`{"n": 1, "large": "` + strings.Repeat("x", 1_000_000) + `"}`)
		all = append(all, e)
	}
	b.publish(all...)
	g.awaitAll(t, len(all))
	g.letOn()
	l.delivered(len(all))
}

// What is nobody's fault costs no attempt.
func TestAFreeFailureOfLeasedWork(t *testing.T) {
	b := setup(t)
	var tries atomic.Int32
	l := b.listen(never, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if tries.Add(1) == 1 {
			return nil, fmt.Errorf("read: %w", &pgconn.PgError{Code: "40001", Severity: "ERROR", Message: "could not serialize"})
		}
		return completion(worker1, e), nil
	})))
	e := event(1)
	b.publish(e)
	// in either order: what follows at once may be reported first
	for _, s := range []postgres.Settlement{l.next(), l.next()} {
		if want := map[postgres.Outcome]int{postgres.Retried: 0, postgres.Delivered: 1}; s.Attempts != want[s.Outcome] {
			t.Errorf("%+v", s)
		}
	}
	b.wantRow(e.EventID, "delivered", 1)
}

// A batch whose completions turn out to take long is given up while the leases in it last: what undoes it later
// would cost them all.
func TestSlowCompletionsTogetherCostNoLease(t *testing.T) {
	b := setupAlone(t, 4*patience)      // leases of 3 s, and what takes nearly as long
	first, rest := newGate(), newGate() // of two quick ones, while whose completions run the slow ones gather
	t.Cleanup(func() { first.letOn(); rest.letOn() })
	completing := make(chan struct{}, 2)
	s := leasing(3*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if payloadN(e) < 2 {
			return func(ctx context.Context, tx events.Tx) error {
				completing <- struct{}{}
				_, err := tx.Exec(ctx, "select pg_catalog.pg_sleep(0.09)")
				return err
			}, first.pass(ctx)
		}
		return func(ctx context.Context, tx events.Tx) error {
			var tooLong bool
			err := tx.QueryRow(ctx, "select pg_catalog.pg_sleep(0.6), pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.now() OPERATOR(pg_catalog.>) interval '3.2 s'").Scan(nil, &tooLong)
			if err == nil && tooLong {
				err = &pgconn.PgError{Code: "40001", Severity: "ERROR", Message: "could not serialize"}
			}
			return err
		}, rest.pass(ctx)
	}))
	s.Concurrency = 24
	l := b.listen(never, s)
	all := b.publishMany(24)
	first.awaitAll(t, 2)
	rest.awaitAll(t, len(all)-2)
	first.letOn()
	within(t, completing)
	within(t, completing)
	rest.letOn()
	l.delivered(len(all))
	if n := one[int](b, "select count(*) from core.outbox where attempts = 1 and crashes = 0"); n != len(all) || len(rest.entered) > 0 {
		t.Fatalf("%d of %d kept their leases, %d were executed again", n, len(all), len(rest.entered))
	}
}

// What the worker gives back as it stops does not wait for completions that wait.
func TestStoppingDoesNotWaitForCompletions(t *testing.T) {
	b := setup(t)
	b.exec("create table platform.contended (n int); insert into platform.contended values (1); grant all on platform.contended to spectral_platform")
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; update platform.contended set n = 2")
	must(t, err)
	waits, g := newGate(), newGate()
	t.Cleanup(g.letOn)
	waits.letOn()
	l := b.newListener(never, pgtest.Generation, leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if payloadN(e) < 3 {
			return func(ctx context.Context, tx events.Tx) error {
				_, err := tx.Exec(ctx, "update platform.contended set n = 3")
				return err
			}, waits.pass(ctx)
		}
		return nil, g.pass(ctx)
	})))
	l.start()
	b.publishMany(8)
	g.awaitAll(t, 5)
	b.eventually("the completions wait", b.somebodyWaits)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- l.Stop(ctx) }()
	b.eventually("the others are given back", func() bool {
		return one[int](b, "select count(*) from core.outbox where status = 'pending' and attempts = 0") == 5
	})
	if n := one[int](b, "select count(*) from core.outbox where status = 'in_flight'"); n != 3 {
		t.Errorf("%d wait", n)
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(t, err)
	if within(t, stopped) == nil {
		t.Error("nothing is said of what was cut off")
	}
	b.eventually("what waited is delivered", func() bool {
		return one[int](b, "select count(*) from core.outbox where status = 'delivered'") == 3
	})
}

// What one completion sets for its transaction, no other meets.
func TestCompletionsDoNotShareLocalSettings(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	b.exec("create table platform.zones (n int, zone text); grant all on platform.zones to spectral_platform")
	s := leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if payloadN(e)%3 == 0 {
				if _, err := tx.Exec(ctx, "set local timezone = 'Asia/Tokyo'"); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, "insert into platform.zones values ($1, current_setting('TimeZone'))", payloadN(e))
			return err
		}, g.pass(ctx)
	}))
	s.Concurrency = 24
	l := b.listen(never, s)
	all := b.publishMany(24)
	g.awaitAll(t, len(all))
	g.letOn()
	l.delivered(len(all))
	if n := one[int](b, "select count(*) from platform.zones where (n % 3 = 0) = (zone = 'Asia/Tokyo')"); n != len(all) {
		t.Fatalf("%d of %d ran under settings of their own", n, len(all))
	}
}

// Many notes of who is at work are written together: the heartbeat is not held up.
func TestManyCoHandlersKeepTheirLeases(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(10*time.Second, gated(worker1, g), completing(worker2))
	s.Concurrency = 400
	l := b.listen(never, s)
	all := b.publishMany(400)
	g.awaitAll(t, len(all))
	if n := one[int](b, "select count(distinct xmin::text) from core.outbox where lease_handler = $1", worker1); n > 100 {
		t.Errorf("%d rows were noted in %d transactions", len(all), n)
	}
	g.letOn()
	l.delivered(len(all))
	if n := one[int](b, "select count(*) from core.outbox where attempts = 1 and crashes = 0"); n != len(all) {
		t.Fatalf("%d of %d kept their leases", n, len(all))
	}
}

// A worker that finds itself beside another set of handlers ends at once, and gives back what it works on.
func TestARefusedWorkerGivesItsLeasesBack(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	causes := make(chan error, 1)
	l := b.newListener(never, pgtest.Generation, leasing(time.Minute, executor(worker1, func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
		err := g.pass(ctx)
		causes <- context.Cause(ctx)
		return nil, err
	})))
	l.start()
	e := event(1)
	b.publish(e)
	g.awaitEntered(t)
	other := uuid.New()
	session := pgtest.Conn(t, b.url)
	_, err := session.Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", other)
	must(t, err)
	b.exec("insert into core.workers (worker_id, session_id, generation, name, handlers) values ($1, $1, 1, 'another', jsonb_build_object($2::text, array['worlds.other']))",
		other, happenedType)
	for _, pid := range b.doorbellPIDs() {
		b.exec("select pg_terminate_backend($1)", pid)
	}
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("it ended with %v", err)
	}
	if cause := within(t, causes); !errors.Is(cause, events.ErrStopping) {
		t.Errorf("the work was told %v", cause)
	}
	b.wantRow(e.EventID, "pending", 0)
}

// However much waits to be settled while the database is away, few connections are tried, also by a worker that is
// told to stop and waits for it.
func TestAnOutageIsNoHotLoop(t *testing.T) {
	for _, stopping := range []bool{false, true} {
		t.Run(map[bool]string{false: "at work", true: "stopping"}[stopping], func(t *testing.T) {
			b := setup(t)
			b.sockets = new(sockets)
			g := newGate()
			t.Cleanup(g.letOn)
			s := leasing(time.Minute, gated(worker1, g))
			s.Concurrency = 100
			l := b.newListener(never, pgtest.Generation, s)
			l.start()
			all := b.publishMany(100)
			g.awaitAll(t, len(all))
			if stopping {
				stopped := make(chan error, 1)
				go func() { stopped <- l.Stop(b.ctx) }()
				defer func() { must(t, within(t, stopped)) }()
				b.eventually("it stops", func() bool { state, _ := l.Health().Now(); return state == postgres.Stopping })
			}
			b.sockets.reach(refusing)
			b.sockets.cut()
			before := b.sockets.count()
			began := one[time.Time](b, "select clock_timestamp()")
			g.letOn()
			b.eventually("it has been away for a while", func() bool {
				return one[bool](b, "select clock_timestamp() > $1::timestamptz + interval '6 s'", began)
			})
			if n := b.sockets.count() - before; n == 0 || n > 20 {
				t.Errorf("%d connections were tried in 6 s", n)
			}
			b.sockets.reach(nil)
			l.delivered(len(all))
			b.wantLeasesKept(len(all))
			b.wantEffects(map[string]int{worker1: len(all)})
		})
	}
}

// The log says where a handler panicked and for which event, and nothing of what it panicked with.
func TestPanicsAreLogged(t *testing.T) {
	b := setup(t)
	log := new(notes)
	b.log = logTo(log)
	once := &events.RetryPolicy{Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	working := executor(worker1, func(context.Context, events.Envelope) (events.Completion, error) { panic("secret") })
	completes := executor(worker2, func(context.Context, events.Envelope) (events.Completion, error) {
		return func(context.Context, events.Tx) error { panic("secret") }, nil
	})
	working.Retry, completes.Retry = once, once
	l := b.listen(never, leasing(time.Minute, working, completes))
	e := event(1)
	b.publish(e)
	l.until(postgres.Failed)
	for _, name := range []string{worker1, worker2} {
		if n := log.count(`"msg":"handler panicked","handler_name":"` + name + `","event_id":"` + e.EventID.String()); n != 1 {
			t.Errorf("the panic of %s is logged %d times", name, n)
		}
	}
	if log.count("secret") > 0 {
		t.Error("the log has what they panicked with")
	}
	if r := b.row(e.EventID); !strings.Contains(r.LastError, "secret") {
		t.Errorf("last_error is %q", r.LastError)
	}
}
