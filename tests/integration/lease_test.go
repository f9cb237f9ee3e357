package integration_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/tests/pgtest"
)

const (
	worker1 = "platform.test_worker"
	worker2 = "worlds.test_worker"
)

// executor registers leased work under name, with quick retries.
func executor(name string, do events.ExecutorFunc) events.Registration {
	return events.Registration{Name: name, Retry: quickly, Executor: do}
}

// completion leaves the effect of a handler.
func completion(name string, e events.Envelope) events.Completion {
	return func(ctx context.Context, tx events.Tx) error { return effect(name)(ctx, tx, e) }
}

// completing is leased work that does nothing but leave its effect.
func completing(name string) events.Registration {
	return executor(name, func(_ context.Context, e events.Envelope) (events.Completion, error) { return completion(name, e), nil })
}

// gated is leased work that waits at a gate before it leaves its effect.
func gated(name string, g *gate) events.Registration {
	return executor(name, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return completion(name, e), g.pass(ctx)
	})
}

// leasing is a consumer of test events that works on eight at once.
func leasing(lease time.Duration, handlers ...events.Registration) events.Subscription {
	s := subscription(handlers...)
	s.Mode, s.Lease, s.Concurrency = events.Leased, lease, 8
	return s
}

// newGate that opens at the end of the test at the latest.
func (b *bundle) newGate() *gate {
	g := newGate()
	b.Cleanup(g.letOn)
	return g
}

// within awaits what is sent.
func within[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(testTimeout):
		t.Fatal("nothing came")
	}
	return v
}

const expireSQL = "update core.outbox set lease_seconds = 1e-6 where id = $1"

// expire lets the lease of an event have run out.
func (b *bundle) expire(id uuid.UUID) {
	b.Helper()
	b.exec(expireSQL, id)
}

// wantLeasesKept fails unless n events have been executed once each, and no lease has run out.
func (b *bundle) wantLeasesKept(n int) {
	b.Helper()
	if kept := one[int](b, "select count(*) from core.outbox where attempts = 1 and crashes = 0"); kept != n {
		b.Errorf("%d of %d kept their leases", kept, n)
	}
}

// begun begins a transaction that the test ends, or its own end.
func (b *bundle) begun(sql string, args ...any) *pgx.Conn {
	b.Helper()
	conn := b.conn()
	_, err := conn.Exec(b.ctx, "begin")
	must(b.T, err)
	_, err = conn.Exec(b.ctx, sql, args...)
	must(b.T, err)
	return conn
}

func rollback(b *bundle, conn *pgx.Conn) {
	b.Helper()
	_, err := conn.Exec(b.ctx, "rollback")
	must(b.T, err)
}

// hold locks one row of platform.contended for each of the numbers below n, until the connection rolls back.
func (b *bundle) hold(n int) (holder *pgx.Conn) {
	b.Helper()
	b.exec("insert into platform.contended select generate_series(0, $1::int - 1)", n)
	return b.begun("select from platform.contended for update")
}

// contend waits for the row of an event that hold has locked, if it has.
func contend(ctx context.Context, tx events.Tx, e events.Envelope) error {
	_, err := tx.Exec(ctx, "update platform.contended set n = n where n = $1", payloadN(e))
	return err
}

// idle reports whether the LISTEN connection waits for notifications and no other runs.
func (l *listening) idle() bool {
	return one[bool](l.bundle, `select count(*) filter (where state <> 'idle') = 0 from pg_stat_activity
		where datname = current_database() and application_name in ('workers', 'notifier')`)
}

// stopNow stops with its grace over.
func (l *listening) stopNow() {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- l.Stop(ctx) }()
	if err := within(l.T, stopped); err == nil || strings.Contains(err.Error(), "could not all be written") {
		l.Errorf("it stopped with: %v", err)
	}
}

// TestLeasedWork runs cases that share a database.
func TestLeasedWork(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"leased work runs outside transactions and within its concurrency": leasedWorkRunsOutsideTransactionsAndWithinItsConcurrency,
		"free failures of leased work":                                     freeFailuresOfLeasedWork,
		"dedup keys decide which execution completes":                      dedupKeysDecideWhichExecutionCompletes,
		"results are settled in batches":                                   resultsAreSettledInBatches,
		"completions act as their context":                                 completionsActAsTheirContext,
		"outages repeat no work":                                           outagesRepeatNoWork,
		"slow commits hold up no batch":                                    slowCommitsHoldUpNoBatch,
		"refused workers release their leases":                             refusedWorkersReleaseTheirLeases,
		"failed completions count like failed handlers":                    failedCompletionsCountLikeFailedHandlers,
	})
}

func leasedWorkRunsOutsideTransactionsAndWithinItsConcurrency(b *bundle) {
	g := b.newGate()
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 3
	l := b.listen(noPoll, s)
	b.publishMany(30)
	g.awaitAll(b.T, 3)
	for range 20 {
		b.publish(event(100)) // each notifies
	}
	b.eventually("the listener has polled since, and no transaction is open", l.idle)
	if n := one[int](b, "select count(*) from core.outbox where status = 'in_flight' and lease_handler = $1", worker1); n != 3 || len(g.entered) > 0 {
		b.Fatalf("%d in flight, %d more executed", n, len(g.entered))
	}
	g.letOn()
	l.delivered(50)
}

func failedCompletionsCountLikeFailedHandlers(b *bundle) {
	inserting := func(sql string) events.Completion {
		return func(ctx context.Context, tx events.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	cases := []struct {
		name     string
		complete events.Completion
		attempts int
		class    string
	}{
		{name: "a completion that fails", attempts: 2, class: "HandlerError", complete: func(context.Context, events.Tx) error { return errRefusing }},
		{name: "a completion that breaks a constraint", attempts: 1, class: "IntegrityError", complete: inserting("insert into platform.contended values (1), (1)")},
		{name: "a completion that breaks a deferred constraint", attempts: 1, class: "IntegrityError",
			complete: inserting("insert into platform.numbers values (1), (1)")},
		{name: "a completion that swallows an error", attempts: 2, class: "AbortedTransaction", complete: func(ctx context.Context, tx events.Tx) error {
			_, _ = tx.Exec(ctx, "select 1 / 0")
			return nil
		}},
		{name: "a completion that ends the transaction", attempts: 2, class: "HandlerError", complete: inserting("/**/ commit")},
		{name: "a completion that panics", attempts: 2, class: "PanicError", complete: func(context.Context, events.Tx) error { panic("secret") }},
		{name: "a completion that takes too long", attempts: 2, class: "TimeoutError", complete: inserting("select pg_catalog.pg_sleep(1000)")},
	}
	log := new(notes)
	b.log = logTo(log)
	fails := executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if err := effect(worker1)(ctx, tx, e); err != nil {
				return err
			}
			return cases[payloadN(e)].complete(ctx, tx)
		}, nil
	})
	fails.Timeout = 500 * time.Millisecond
	fails.Retry = &events.RetryPolicy{MaxRetries: 1, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	l := b.listen(noPoll, leasing(time.Minute, fails))
	for n, c := range cases {
		log.reset()
		e := event(n)
		b.publish(e)
		for l.next().Outcome != dispatch.Failed {
		}
		if r := b.wantRow(e.EventID, "failed", c.attempts); r.Failures[worker1].Class != c.class || !r.Failures[worker1].Parked {
			b.Errorf("%s: %+v", c.name, r)
		}
		if panicked := log.count(`"msg":"handler panicked"`) > 0; panicked != (c.class == "PanicError") || log.count("secret") > 0 {
			b.Errorf("%s: a panic is logged without its value, and nothing else is", c.name)
		}
	}
	if n := one[int](b, "select (select count(*) from platform.effects) + (select count(*) from core.event_handled)"); n > 0 {
		b.Error("their writes are kept")
	}
}

// Neither a serialization failure of the work nor deadlocks of its completion cost an attempt; the latter repeat no work.
func freeFailuresOfLeasedWork(b *bundle) {
	var executed, completed atomic.Int32
	free := func(code string) error { return &pgconn.PgError{Code: code, Severity: "ERROR"} }
	l := b.listen(noPoll, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if executed.Add(1) == 1 {
			return nil, free("40001")
		}
		return func(ctx context.Context, tx events.Tx) error {
			if completed.Add(1) <= 3 {
				return free("40P01")
			}
			return effect(worker1)(ctx, tx, e)
		}, nil
	})))
	e := event(1)
	b.publish(e)
	l.until(dispatch.Delivered)
	b.wantRow(e.EventID, "delivered", 1)
	b.wantEffects(map[string]int{worker1: 1})
	if executed.Load() != 2 {
		b.Errorf("executed %d times", executed.Load())
	}
}

func dedupKeysDecideWhichExecutionCompletes(b *bundle) {
	g := b.newGate()
	l := b.listen(noPoll, leasing(time.Minute, gated(worker1, g)))
	var duplicates []events.Envelope
	for n := range 7 {
		e := event(n)
		e.IdempotencyKey = "same"
		duplicates = append(duplicates, e)
	}
	b.publish(duplicates[:6]...)
	g.awaitAll(b.T, 6)
	g.letOn()
	l.delivered(6)
	b.publish(duplicates[6])
	l.delivered(1)
	b.wantEffects(map[string]int{worker1: 1})
	if len(g.entered) > 0 {
		b.Error("what is handled already was executed")
	}
}

// TestLeases runs cases that share a database.
func TestLeases(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"a slow class delays no other":                          aSlowClassDelaysNoOther,
		"a worker of one class leaves the others alone":         aWorkerOfOneClassLeavesTheOthers,
		"one result costs its neighbours nothing":               oneResultCostsItsNeighboursNothing,
		"leased rows that workers died of run one at a time":    leasedRowsThatWorkersDiedOfRunOneAtATime,
		"lost commit replies repeat nothing":                    lostCommitRepliesRepeatNothing,
		"heartbeats renew leases through their own connections": heartbeatsRenewLeasesThroughTheirOwnConnections,
		"a lost lease cancels execute":                          aLostLeaseCancelsExecute,
		"stopping settles what it can":                          stoppingSettlesWhatItCan,
	})
}

// The pool that dispatches is used up for the time.
func heartbeatsRenewLeasesThroughTheirOwnConnections(b *bundle) {
	b.poolURL += "&pool_max_conns=1"
	g := b.newGate()
	l := b.listen(noPoll, leasing(15*time.Second, gated(worker1, g)))
	e := event(1)
	b.publish(e)
	g.awaitEntered(b.T)
	conn, err := l.workers.Acquire(b.ctx)
	must(b.T, err)
	leased := one[time.Time](b, "select claimed_at from core.outbox where id = $1", e.EventID)
	b.eventually("the lease is renewed", func() bool {
		return one[bool](b, "select claimed_at > $2 from core.outbox where id = $1", e.EventID, leased)
	})
	conn.Release()
	g.letOn()
	l.delivered(1)
	b.wantLeasesKept(1)
}

func aLostLeaseCancelsExecute(b *bundle) {
	g := b.newGate()
	causes := make(chan error, 1)
	var tries atomic.Int32
	l := b.listen(noPoll, leasing(15*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
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
	g.awaitEntered(b.T)
	b.expire(e.EventID)
	b.exec("select core.outbox_reap()")
	l.delivered(1)
	if cause := within(b.T, causes); !errors.Is(cause, events.ErrLeaseLost) {
		b.Fatalf("the work was told %v", cause)
	}
	g.letOn()
	l.stop()
	r := b.wantRow(e.EventID, "delivered", 2)
	if want := "LeaseExpired: " + worker1; !strings.HasPrefix(r.LastError, want) {
		b.Error(r.LastError)
	}
	b.wantEffects(map[string]int{worker1: 1})
	if len(l.settlements) > 0 {
		b.Errorf("settled again: %+v", <-l.settlements)
	}
}

// A lost reply to a COMMIT repeats neither work nor completions, and waits for no lease to run out.
func lostCommitRepliesRepeatNothing(b *bundle) {
	b.sockets = new(sockets)
	var executed atomic.Int32
	b.listen(noPoll, leasing(time.Minute, executor(worker1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		if executed.Add(1) == 1 { // the reply to the retry
			b.sockets.lostReply.Store(true)
			return nil, errRefusing
		}
		return func(ctx context.Context, tx events.Tx) error {
			b.sockets.lostReply.Store(true) // the reply to the delivery
			return effect(worker1)(ctx, tx, e)
		}, nil
	})))
	e := event(1)
	b.publish(e)
	b.eventually("it is delivered", func() bool { return b.row(e.EventID).Status == "delivered" })
	b.wantRow(e.EventID, "delivered", 2)
	b.wantEffects(map[string]int{worker1: 1})
	if n := executed.Load(); n != 2 || b.sockets.lostReply.Load() {
		b.Errorf("executed %d times, or no reply was lost", n)
	}
}

func resultsAreSettledInBatches(b *bundle) {
	g := b.newGate()
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 60
	l := b.listen(noPoll, s)
	all := b.publishMany(60)
	g.awaitAll(b.T, len(all))
	g.letOn()
	l.delivered(len(all))
	b.wantEffects(map[string]int{worker1: len(all)})
	transactions := one[int](b, "select count(distinct xmin::text) from core.event_handled")
	rows := one[int](b, "select max(n) from (select count(*)::int as n from core.event_handled group by xmin::text) s")
	if rows < 2 {
		b.Fatalf("%d rows in %d transactions, %d in the largest", len(all), transactions, rows)
	}
}

// One result that fails, or blocks for as long as the test goes on, costs its neighbours neither leases nor executions.
func oneResultCostsItsNeighboursNothing(b *bundle) { costNothing(b, badResults[:2]) }

// badResult is a result that cannot be settled.
type badResult struct {
	name string
	hold string // what another transaction does with its event
	does func(context.Context, events.Tx) error
}

// badResults are all of them. Those behind the second are tried by the heavy tests.
var badResults = []badResult{
	{name: "it fails", does: func(context.Context, events.Tx) error { return errRefusing }},
	{name: "it waits for a lock", hold: "update platform.contended set n = n where $1::uuid is not null",
		does: func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "update platform.contended set n = n")
			return err
		}},
	{name: "its row is locked", hold: "select from core.outbox where id = $1 for update"},
	{name: "it ignores its context"}, // and does nothing
	{name: "its COMMIT waits", hold: "insert into platform.numbers select 4 where $1::uuid is not null",
		does: func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "insert into platform.numbers values (4)")
			return err
		}},
	{name: "its key is held", hold: `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select '` + worker1 + `', idempotency_key, id, event_type, content_class from core.outbox where id = $1`},
}

func costNothing(b *bundle, results []badResult) {
	b.Helper()
	const all, bad = 24, 4
	b.exec("insert into platform.contended values (1)")
	for _, c := range results {
		b.run(c.name, func(b *bundle) {
			b.exec("delete from platform.effects")
			b.exec("delete from core.outbox")
			g := b.newGate()
			heedless := b.newGate()
			var free atomic.Bool
			s := leasing(30*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
				return func(ctx context.Context, tx events.Tx) error {
					switch {
					case payloadN(e) != bad || free.Load():
					case c.does != nil:
						if err := c.does(ctx, tx); err != nil {
							return err
						}
					case c.hold == "":
						<-heedless.open
					}
					return effect(worker1)(ctx, tx, e)
				}, g.pass(ctx)
			}))
			s.Concurrency = all
			b.listen(noPoll, s)
			published := b.publishMany(all)
			g.awaitAll(b.T, all)
			var holder *pgx.Conn
			if c.hold != "" {
				holder = b.begun(c.hold, published[bad].EventID)
			}
			g.letOn()
			b.eventually("its neighbours are delivered", func() bool {
				return one[int](b, "select count(*) from core.outbox where status = 'delivered'") >= all-1
			})
			if n := one[int](b, "select count(*) from core.outbox where status = 'delivered' and attempts = 1 and crashes = 0"); n != all-1 {
				b.Errorf("%d of %d neighbours kept their leases", n, all-1)
			}
			free.Store(true)
			heedless.letOn()
			if c.hold != "" {
				rollback(b, holder)
			}
			b.eventually("it is delivered, too", func() bool { return b.row(published[bad].EventID).Status == "delivered" })
			b.wantEffects(map[string]int{worker1: all})
		})
	}
}

func completionsActAsTheirContext(b *bundle) {
	w := uuid.New()
	g := b.newGate()
	s := leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "insert into platform.acted values ($1, current_user, current_setting('spectral.workspace_id'))", payloadN(e))
			return err
		}, g.pass(ctx)
	}))
	l := b.listen(noPoll, s)
	var all []events.Envelope
	for n := range s.Concurrency {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: w, Valid: n%2 == 0}
		all = append(all, e)
	}
	b.publish(all...)
	g.awaitAll(b.T, len(all))
	g.letOn()
	l.delivered(len(all))
	if n := one[int](b, `select count(*) from platform.acted
		where role = 'spectral_platform' and workspace = case when n % 2 = 0 then $1::text else '' end`, w.String()); n != len(all) {
		b.Errorf("%d of %d acted as they should", n, len(all))
	}
	l.wantLogin("all of them")
}

// What is done when the grace is over is still settled, and failures are recorded. What then still waits is released, but for
// rows that are locked.
func stoppingSettlesWhatItCan(b *bundle) {
	const done, fails, waits, keyed, locked = 0, 1, 2, 3, 4
	lock := b.hold(waits + 1)
	_, err := lock.Exec(b.ctx, "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) "+
		"values ($1, 'worlds:-:held', gen_random_uuid(), $2, 'operational')", worker1, happenedType)
	must(b.T, err)
	entered := make(chan struct{}, 5)
	l := b.newWorker(noPoll, pgtest.Generation, leasing(time.Minute,
		executor(worker2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
			if payloadN(e) == fails {
				return nil, events.Terminal(errRefusing)
			}
			return nil, nil
		}),
		executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			entered <- struct{}{}
			<-ctx.Done()
			if n := payloadN(e); n == fails || n == locked {
				return nil, ctx.Err()
			}
			return func(ctx context.Context, tx events.Tx) error {
				if payloadN(e) == waits {
					return contend(ctx, tx, e)
				}
				return effect(worker1)(ctx, tx, e)
			}, nil
		})))
	l.start()
	var all []events.Envelope
	for n := range locked + 1 {
		e := event(n)
		if n == keyed {
			e.IdempotencyKey = "held"
		}
		all = append(all, e)
	}
	b.publish(all...)
	for range all {
		within(b.T, entered)
	}
	b.begun("select from core.outbox where id = $1 for update", all[locked].EventID)
	l.stopNow()
	b.wantRow(all[done].EventID, "delivered", 1)
	if r := b.wantRow(all[fails].EventID, "pending", 1); !r.Failures[worker2].Parked || len(r.Failures) != 1 {
		b.Errorf("%+v", r)
	}
	b.wantRow(all[waits].EventID, "pending", 0)
	b.wantRow(all[keyed].EventID, "pending", 0)
	b.wantRow(all[locked].EventID, "in_flight", 1)
	b.wantEffects(map[string]int{worker1: 1})
}

// A worker that finds itself beside another set of handlers ends at once.
func refusedWorkersReleaseTheirLeases(b *bundle) {
	g := b.newGate()
	causes := make(chan error, 1)
	l := b.newWorker(noPoll, pgtest.Generation, leasing(time.Minute, executor(worker1, func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
		err := g.pass(ctx)
		causes <- context.Cause(ctx)
		return nil, err
	})))
	l.start()
	e := event(1)
	b.publish(e)
	g.awaitEntered(b.T)
	other := uuid.New()
	session := b.conn()
	_, err := session.Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", other)
	must(b.T, err)
	b.exec("insert into core.workers (worker_id, session_id, generation, name, handlers) values ($1, $1, 1, 'another', jsonb_build_object($2::text, array['worlds.other']))",
		other, happenedType)
	for _, pid := range b.notifierPIDs() {
		b.exec("select pg_terminate_backend($1)", pid)
	}
	within(b.T, l.Done())
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "another") {
		b.Errorf("it ended with %v", err)
	}
	if cause := within(b.T, causes); !errors.Is(cause, events.ErrStopping) {
		b.Errorf("the work was told %v", cause)
	}
	b.wantRow(e.EventID, "pending", 0)
}

func outagesRepeatNoWork(b *bundle) {
	b.sockets = new(sockets)
	g := b.newGate()
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = 30
	l := b.listen(noPoll, s)
	all := b.publishMany(30)
	g.awaitAll(b.T, len(all))
	b.sockets.reach(refusing)
	b.sockets.cut()
	before := b.sockets.count()
	g.letOn()
	b.eventually("connections are tried", func() bool { return b.sockets.count() >= before+4 })
	b.sockets.reach(nil)
	l.delivered(len(all))
	b.wantLeasesKept(len(all))
	b.wantEffects(map[string]int{worker1: len(all)})
}

// In a row-locked batch a COMMIT that waits for another transaction is over before its neighbours have waited for long.
func slowCommitsHoldUpNoBatch(b *bundle) {
	const all = 10
	holder := b.begun("insert into platform.numbers values (0)")
	b.publishMany(all)
	s := subscription(handler(worker1, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, "insert into platform.numbers values ($1)", payloadN(e)); err != nil {
			return err
		}
		return effect(worker1)(ctx, tx, e)
	}))
	s.Concurrency = 2
	l := b.listen(noPoll, s)
	l.delivered(all - 1)
	rollback(b, holder)
	l.until(dispatch.Delivered)
	b.wantEffects(map[string]int{worker1: all})
}

// Rows that workers died of run one at a time in a process, beside others, and all run.
func leasedRowsThatWorkersDiedOfRunOneAtATime(b *bundle) {
	const crashed = 5
	b.publishMany(crashed)
	b.exec("update core.outbox set crashes = 1")
	g := newGate()
	l := b.listen(noPoll, leasing(time.Hour, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if payloadN(e) < crashed {
			if err := g.pass(ctx); err != nil {
				return nil, err
			}
		}
		return completion(worker1, e), nil
	})))
	g.awaitEntered(b.T)
	for n := range 10 { // others go on
		b.publish(event(crashed + n))
		l.delivered(1)
	}
	if len(g.entered) > 0 {
		b.Error("two rows that workers died of run at once")
	}
	g.letOn()
	l.delivered(crashed)
}
