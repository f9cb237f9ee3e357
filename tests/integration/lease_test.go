package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/worker"
	"spectral/tests/pgtest"
)

const (
	executor1 = "platform.test_worker"
	executor2 = "worlds.test_worker"
)

// executor registers an executor under a name, with fast retries.
func executor(name string, do events.ExecutorFunc) events.Registration {
	return events.Registration{Name: name, Retry: fastRetry, Executor: do}
}

// effectCompletion is a completion that writes the effect of a handler.
func effectCompletion(name string, e events.Envelope) events.Completion {
	return func(ctx context.Context, tx events.Tx) error { return writeEffect(name)(ctx, tx, e) }
}

func effectExecutor(name string) events.Registration {
	return executor(name, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return effectCompletion(name, e), nil
	})
}

func gatedExecutor(name string, g *gate) events.Registration {
	return executor(name, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return effectCompletion(name, e), g.wait(ctx)
	})
}

// leasedSubscription is a consumer of test events in leased mode with eight runners.
func leasedSubscription(lease time.Duration, handlers ...events.Registration) events.Subscription {
	s := subscription(handlers...)
	s.Mode, s.Lease, s.Concurrency = events.Leased, lease, 8
	return s
}

func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(testTimeout):
		t.Fatal("no value was sent")
	}
	return v
}

func (b *bundle) wantOneAttemptEach(n int) {
	b.Helper()
	if once := one[int](b, "select count(*) from core.outbox where attempts = 1 and crashes = 0"); once != n {
		b.Errorf("%d of %d had one attempt", once, n)
	}
}

// beginTx begins a transaction on its own connection and executes sql in it.
func (b *bundle) beginTx(sql string, args ...any) *pgx.Conn {
	b.Helper()
	conn := b.conn()
	_, err := conn.Exec(b.ctx, "begin")
	must(b.T, err)
	_, err = conn.Exec(b.ctx, sql, args...)
	must(b.T, err)
	return conn
}

func (b *bundle) rollback(conn *pgx.Conn) {
	b.Helper()
	_, err := conn.Exec(b.ctx, "rollback")
	must(b.T, err)
}

// lockContended inserts n rows into platform.contended and locks them until the returned connection rolls back.
func (b *bundle) lockContended(n int) (holder *pgx.Conn) {
	b.Helper()
	b.exec("insert into platform.contended select generate_series(0, $1::int - 1)", n)
	return b.beginTx("select from platform.contended for update")
}

// updateContended updates the event's row of platform.contended, and waits if lockContended holds it.
func updateContended(ctx context.Context, tx events.Tx, e events.Envelope) error {
	_, err := tx.Exec(ctx, "update platform.contended set n = n where n = $1", payloadN(e))
	return err
}

// idle reports whether no connection of the worker is in a statement or transaction.
func (l *testWorker) idle() bool {
	return one[bool](l.bundle, `select count(*) filter (where state <> 'idle') = 0 from pg_stat_activity
		where datname = current_database() and application_name in ('workers', 'notifier')`)
}

func (l *testWorker) stopWithoutGrace() {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- l.Stop(ctx) }()
	if err := receive(l.T, stopped); err == nil || strings.Contains(err.Error(), "could not all be written") {
		l.Errorf("it stopped with %v", err)
	}
}

func TestLeasedWork(t *testing.T) {
	setup(t).cases(aSlowCommitDoesNotDelayABatch, anOutageRepeatsNoWork, completionsRunAsTheirContextsRole,
		dedupKeysDecideWhichExecutionCompletes, failedCompletionsCountLikeFailedHandlers,
		anOutageOfTheServerCostsNoLeasedAttempt, freeFailuresCostNoAttempt,
		leasedWorkRunsOutsideTransactionsAndWithinItsConcurrency, refusedWorkersReleaseTheirLeases,
		resultsAreSettledInBatches)
}

func leasedWorkRunsOutsideTransactionsAndWithinItsConcurrency(b *bundle) {
	g := b.newGate()
	s := leasedSubscription(time.Minute, gatedExecutor(executor1, g))
	s.Concurrency = 3
	l := b.startWorker(noPoll, s)
	b.publishMany(30)
	g.awaitAll(b.T, 3)
	for range 20 {
		b.publish(event(100)) // each notifies the worker
	}
	b.eventually("the worker is idle", l.idle)
	n := one[int](b, "select count(*) from core.outbox where status = 'in_flight' and lease_handler = $1", executor1)
	if n != 3 || len(g.entered) > 0 {
		b.Fatalf("%d in flight, %d more executed", n, len(g.entered))
	}
	g.release()
	l.awaitDelivered(50)
}

func failedCompletionsCountLikeFailedHandlers(b *bundle) {
	run := func(sql string) events.Completion {
		return func(ctx context.Context, tx events.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	cases := []struct {
		class    string
		attempts int
		complete events.Completion
	}{
		{"HandlerError", 2, func(context.Context, events.Tx) error { return errOnPurpose }},
		{"IntegrityError", 2, run("insert into platform.contended values (1), (1)")},
		{"IntegrityError", 2, run("insert into platform.numbers values (1), (1)")}, // a deferred constraint
		{"AbortedTransaction", 2, func(ctx context.Context, tx events.Tx) error {
			_, _ = tx.Exec(ctx, "select 1 / 0")
			return nil
		}},
		{"HandlerError", 2, run("/**/ commit")}, {"TimeoutError", 2, run("select pg_catalog.pg_sleep(1000)")},
		{"PanicError", 2, func(context.Context, events.Tx) error { panic("secret") }},
	}
	log := new(logBuffer)
	b.log = logTo(log)
	fails := executor(executor1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if err := writeEffect(executor1)(ctx, tx, e); err != nil {
				return err
			}
			return cases[payloadN(e)].complete(ctx, tx)
		}, nil
	})
	fails.Timeout = 500 * time.Millisecond
	fails.Retry = &events.RetryPolicy{MaxRetries: 1, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	l := b.startWorker(noPoll, leasedSubscription(time.Minute, fails))
	for n, c := range cases {
		log.reset()
		e := event(n)
		b.publish(e)
		for l.nextSettlement().Outcome != dispatch.Failed {
		}
		if r := b.wantRow(e.EventID, "failed", c.attempts); r.Failures[executor1].Class != c.class ||
			!r.Failures[executor1].Parked {
			b.Errorf("want %s: %+v", c.class, r)
		}
		if panicked := log.count(`"msg":"handler panicked"`) > 0; panicked != (c.class == "PanicError") ||
			log.count("secret") > 0 {
			b.Errorf("%s: want a log entry for a panic only, without its value", c.class)
		}
	}
	if n := one[int](b, "select (select count(*) from platform.effects) + (select count(*) from "+
		"core.event_handled)"); n > 0 {
		b.Error("their writes were committed")
	}
}

// Serialization failures and deadlocks cost no attempt. After a deadlock of the completion the work does not run
// again.
func freeFailuresCostNoAttempt(b *bundle) {
	var executed, completed atomic.Int32
	free := func(code string) error { return &pgconn.PgError{Code: code, Severity: "ERROR"} }
	l := b.startWorker(noPoll, leasedSubscription(time.Minute,
		executor(executor1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
			if executed.Add(1) == 1 {
				return nil, free("40001")
			}
			return func(ctx context.Context, tx events.Tx) error {
				if completed.Add(1) <= 3 {
					return free("40P01")
				}
				return writeEffect(executor1)(ctx, tx, e)
			}, nil
		})))
	e := event(1)
	b.publish(e)
	l.awaitOutcome(dispatch.Delivered)
	b.wantRow(e.EventID, "delivered", 1)
	b.wantEffects(map[string]int{executor1: 1})
	if executed.Load() != 2 {
		b.Errorf("executed %d times", executed.Load())
	}
}

func anOutageOfTheServerCostsNoLeasedAttempt(b *bundle) {
	b.outage(func(full func() error) events.Subscription {
		return leasedSubscription(time.Minute,
			executor(executor1, func(_ context.Context, e events.Envelope) (events.Completion, error) {
				return func(ctx context.Context, tx events.Tx) error { return writeEffect(executor1)(ctx, tx, e) }, full()
			}))
	})
	b.wantEffects(map[string]int{executor1: 5})
}

func dedupKeysDecideWhichExecutionCompletes(b *bundle) {
	g := b.newGate()
	l := b.startWorker(noPoll, leasedSubscription(time.Minute, gatedExecutor(executor1, g)))
	var duplicates []events.Envelope
	for n := range 7 {
		e := event(n)
		e.IdempotencyKey = "same"
		duplicates = append(duplicates, e)
	}
	b.publish(duplicates[:6]...)
	g.awaitAll(b.T, 6)
	g.release()
	l.awaitDelivered(6)
	b.publish(duplicates[6])
	l.awaitDelivered(1)
	b.wantEffects(map[string]int{executor1: 1})
	if len(g.entered) > 0 {
		b.Error("an event whose key was handled was executed")
	}
}

func TestLeases(t *testing.T) {
	setup(t).cases(aBadResultDoesNotAffectOthers, aLostLeaseCancelsExecute, aSlowClassDelaysNoOther,
		crashedLeasedRowsRunOneAtATime, heartbeatsRenewLeasesThroughTheirOwnConnections,
		stopSettlesFinishedWorkAndReleasesTheRest)
}

// The only connection of the dispatching pool is taken.
func heartbeatsRenewLeasesThroughTheirOwnConnections(b *bundle) {
	b.poolURL += "&pool_max_conns=1"
	g := b.newGate()
	l := b.startWorker(noPoll, leasedSubscription(15*time.Second, gatedExecutor(executor1, g)))
	e := event(1)
	b.publish(e)
	g.awaitEntered(b.T)
	conn, err := l.workers.Acquire(b.ctx)
	must(b.T, err)
	leased := one[time.Time](b, "select claimed_at from core.outbox where id = $1", e.EventID)
	b.eventually("renewal of the lease", func() bool {
		return one[bool](b, "select claimed_at > $2 from core.outbox where id = $1", e.EventID, leased)
	})
	conn.Release()
	g.release()
	l.awaitDelivered(1)
	b.wantOneAttemptEach(1)
}

func aLostLeaseCancelsExecute(b *bundle) {
	g := b.newGate()
	causes := make(chan error, 1)
	var tries atomic.Int32
	l := b.startWorker(noPoll, leasedSubscription(15*time.Second,
		executor(executor1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			if tries.Add(1) > 1 {
				return effectCompletion(executor1, e), nil
			}
			g.entered <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			<-g.open
			return effectCompletion(executor1, e), nil // it ignored the end of its context
		})))
	e := event(1)
	b.publish(e)
	g.awaitEntered(b.T)
	b.exec("update core.outbox set lease_seconds = 1e-6")
	b.exec("select core.outbox_reap()")
	l.awaitDelivered(1)
	if cause := receive(b.T, causes); !errors.Is(cause, events.ErrLeaseLost) {
		b.Fatalf("the work's context ended with %v", cause)
	}
	g.release()
	l.stop()
	r := b.wantRow(e.EventID, "delivered", 2)
	if want := "LeaseExpired: " + executor1; !strings.HasPrefix(r.LastError, want) {
		b.Error(r.LastError)
	}
	b.wantEffects(map[string]int{executor1: 1})
	if len(l.settlements) > 0 {
		b.Errorf("settled again: %+v", <-l.settlements)
	}
}

func resultsAreSettledInBatches(b *bundle) {
	g := b.newGate()
	s := leasedSubscription(time.Minute, gatedExecutor(executor1, g))
	s.Concurrency = 600 // the batches double up to their limit
	l := b.startWorker(noPoll, s)
	all := b.publishMany(s.Concurrency)
	g.awaitAll(b.T, len(all))
	g.release()
	l.awaitDelivered(len(all))
	b.wantEffects(map[string]int{executor1: len(all)})
	rows := one[int](b, "select max(n) from (select count(*)::int as n from core.event_handled group by xmin::text) s")
	if rows < 2 || rows > 100 {
		b.Fatalf("%d rows were settled in one transaction", rows)
	}
}

func aBadResultDoesNotAffectOthers(b *bundle) { verifyBadResults(b, badResults[:2]) }

type badResult struct {
	name string
	hold string // what another transaction executes with the event's id
	does func(context.Context, events.Tx) error
}

// badResults are all cases. The default tests run the first two, the heavy tests the others.
var badResults = []badResult{
	{name: "it fails", does: func(context.Context, events.Tx) error { return errOnPurpose }},
	{name: "it waits for a lock", hold: "update platform.contended set n = n where $1::uuid is not null",
		does: func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "update platform.contended set n = n")
			return err
		}},
	{name: "its row is locked", hold: "select from core.outbox where id = $1 for update"},
	{name: "it ignores its context"}, // it waits for the gate
	{name: "its COMMIT waits", hold: "insert into platform.numbers select 4 where $1::uuid is not null",
		does: func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "insert into platform.numbers values (4)")
			return err
		}},
	{name: "its key is held", hold: `insert into core.event_handled
			(handler_name, idempotency_key, event_id, event_type, content_class)
		select '` + executor1 + `', idempotency_key, id, event_type, content_class from core.outbox where id = $1`},
}

func verifyBadResults(b *bundle, results []badResult) {
	b.Helper()
	const all, bad = 24, 4
	b.exec("insert into platform.contended values (1)")
	for _, c := range results {
		b.run(c.name, func(b *bundle) {
			b.exec("delete from platform.effects")
			b.exec("delete from core.outbox")
			g := b.newGate()
			stuck := b.newGate()
			var free atomic.Bool
			s := leasedSubscription(30*time.Second,
				executor(executor1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
					return func(ctx context.Context, tx events.Tx) error {
						switch {
						case payloadN(e) != bad || free.Load():
						case c.does != nil:
							if err := c.does(ctx, tx); err != nil {
								return err
							}
						case c.hold == "":
							<-stuck.open
						}
						return writeEffect(executor1)(ctx, tx, e)
					}, g.wait(ctx)
				}))
			s.Concurrency = all
			// the bad one fails until the others are delivered, however long that takes
			s.Primary.Retry = &events.RetryPolicy{MaxRetries: 1000, Base: time.Second, Multiplier: 1, Cap: time.Second}
			b.startWorker(noPoll, s)
			published := b.publishMany(all)
			g.awaitAll(b.T, all)
			var holder *pgx.Conn
			if c.hold != "" {
				holder = b.beginTx(c.hold, published[bad].EventID)
			}
			g.release()
			b.eventually("delivery of the others", func() bool {
				return one[int](b, "select count(*) from core.outbox where status = 'delivered'") >= all-1
			})
			const once = "select count(*) from core.outbox where status = 'delivered' and attempts = 1 and crashes = 0"
			if n := one[int](b, once); n != all-1 {
				b.Errorf("%d of %d others had one attempt", n, all-1)
			}
			free.Store(true)
			stuck.release()
			if c.hold != "" {
				b.rollback(holder)
			}
			b.eventually("its delivery", func() bool { return b.row(published[bad].EventID).Status == "delivered" })
			b.wantEffects(map[string]int{executor1: all})
		})
	}
}

func completionsRunAsTheirContextsRole(b *bundle) {
	w := uuid.New()
	g := b.newGate()
	s := leasedSubscription(time.Minute,
		executor(executor1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			return func(ctx context.Context, tx events.Tx) error {
				_, err := tx.Exec(ctx, "insert into platform.acted values ($1, current_user, "+
					"current_setting('spectral.workspace_id'))", payloadN(e))
				return err
			}, g.wait(ctx)
		}))
	l := b.startWorker(noPoll, s)
	var all []events.Envelope
	for n := range s.Concurrency {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: w, Valid: n%2 == 0}
		all = append(all, e)
	}
	b.publish(all...)
	g.awaitAll(b.T, len(all))
	g.release()
	l.awaitDelivered(len(all))
	if n := one[int](b, `select count(*) from platform.acted
		where role = 'spectral_platform' and workspace = case when n % 2 = 0 then $1::text else '' end`,
		w.String()); n != len(all) {
		b.Errorf("%d of %d ran as the role and workspace", n, len(all))
	}
	l.wantLogin("all of them")
}

// Work that has ended when the grace is over is settled, and failures are recorded. The rest is released, except
// locked rows.
func stopSettlesFinishedWorkAndReleasesTheRest(b *bundle) {
	const done, fails, waits, keyHeld, locked = 0, 1, 2, 3, 4
	lock := b.lockContended(waits + 1)
	_, err := lock.Exec(b.ctx, "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, "+
		"content_class) values ($1, 'worlds:-:held', gen_random_uuid(), $2, 'operational')", executor1, happenedType)
	must(b.T, err)
	entered := make(chan struct{}, 5)
	l := b.startWorker(noPoll, leasedSubscription(time.Minute,
		executor(executor2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
			if payloadN(e) == fails {
				return nil, events.Terminal(errOnPurpose)
			}
			return nil, nil
		}),
		executor(executor1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			entered <- struct{}{}
			<-ctx.Done()
			if n := payloadN(e); n == fails || n == locked {
				return nil, ctx.Err()
			}
			return func(ctx context.Context, tx events.Tx) error {
				if payloadN(e) == waits {
					return updateContended(ctx, tx, e)
				}
				return writeEffect(executor1)(ctx, tx, e)
			}, nil
		})))
	var all []events.Envelope
	for n := range locked + 1 {
		e := event(n)
		if n == keyHeld {
			e.IdempotencyKey = "held"
		}
		all = append(all, e)
	}
	b.publish(all...)
	for range all {
		receive(b.T, entered)
	}
	b.beginTx("select from core.outbox where id = $1 for update", all[locked].EventID)
	l.stopWithoutGrace()
	b.wantRow(all[done].EventID, "delivered", 1)
	if r := b.wantRow(all[fails].EventID, "pending", 1); !r.Failures[executor2].Parked || len(r.Failures) != 1 {
		b.Errorf("%+v", r)
	}
	b.wantRow(all[waits].EventID, "pending", 0)
	b.wantRow(all[keyHeld].EventID, "pending", 0)
	b.wantRow(all[locked].EventID, "in_flight", 1)
	b.wantEffects(map[string]int{executor1: 1})
}

// A worker ends at once when another live worker has a different set of handlers.
func refusedWorkersReleaseTheirLeases(b *bundle) {
	g := b.newGate()
	causes := make(chan error, 1)
	l := b.startWorker(noPoll, leasedSubscription(time.Minute,
		executor(executor1, func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
			err := g.wait(ctx)
			causes <- context.Cause(ctx)
			return nil, err
		})))
	e := event(1)
	b.publish(e)
	g.awaitEntered(b.T)
	other := uuid.New()
	session := b.conn()
	_, err := session.Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", other)
	must(b.T, err)
	b.exec("insert into core.workers (worker_id, session_id, generation, name, handlers) values ($1, $1, 1, 'another', "+
		"jsonb_build_object($2::text, array['worlds.other']))",
		other, happenedType)
	for _, pid := range b.notifierPIDs() {
		b.exec("select pg_terminate_backend($1)", pid)
	}
	receive(b.T, l.Done())
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "another") {
		b.Errorf("it ended with %v", err)
	}
	if cause := receive(b.T, causes); !errors.Is(cause, events.ErrStopping) {
		b.Errorf("the work's context ended with %v", cause)
	}
	b.wantRow(e.EventID, "pending", 0)
}

func anOutageRepeatsNoWork(b *bundle) {
	b.sockets = new(sockets)
	g := b.newGate()
	s := leasedSubscription(time.Minute, gatedExecutor(executor1, g))
	s.Concurrency = 30
	l := b.startWorker(noPoll, s)
	all := b.publishMany(30)
	g.awaitAll(b.T, len(all))
	b.sockets.dialWith(refuseDial)
	b.sockets.closeAll()
	before := b.sockets.count()
	g.release()
	b.eventually("new connection attempts", func() bool { return b.sockets.count() >= before+4 })
	b.sockets.dialWith(nil)
	l.awaitDelivered(len(all))
	b.wantOneAttemptEach(len(all))
	b.wantEffects(map[string]int{executor1: len(all)})
}

// In a row-locked batch a COMMIT that waits for another transaction is cancelled, and the rows run one by one.
func aSlowCommitDoesNotDelayABatch(b *bundle) {
	const all = 10
	holder := b.beginTx("insert into platform.numbers values (0)")
	b.publishMany(all)
	s := subscription(handler(executor1, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, "insert into platform.numbers values ($1)", payloadN(e)); err != nil {
			return err
		}
		return writeEffect(executor1)(ctx, tx, e)
	}))
	s.Concurrency = 2
	l := b.startWorker(noPoll, s)
	l.awaitDelivered(all - 1)
	b.rollback(holder)
	l.awaitOutcome(dispatch.Delivered)
	b.wantEffects(map[string]int{executor1: all})
}

func crashedLeasedRowsRunOneAtATime(b *bundle) {
	const crashed = 5
	b.publishMany(crashed)
	b.exec("update core.outbox set crashes = 1")
	g := b.newGate()
	l := b.startWorker(noPoll, leasedSubscription(time.Hour,
		executor(executor1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			if payloadN(e) < crashed {
				if err := g.wait(ctx); err != nil {
					return nil, err
				}
			}
			return effectCompletion(executor1, e), nil
		})))
	g.awaitEntered(b.T)
	for n := range 10 { // other rows run in that time
		b.publish(event(crashed + n))
		l.awaitDelivered(1)
	}
	if len(g.entered) > 0 {
		b.Error("two crashed rows run at the same time")
	}
	g.release()
	l.awaitDelivered(crashed)
}

// slowType and rowLockedSlowType are events of the processing class slow.
const slowType, rowLockedSlowType = "worlds.test.slow", "worlds.test.rowlocked"

func slow(n int) events.Envelope { return ofType(slowType, event(n)) }

func slowSubscription(handlers ...events.Registration) events.Subscription {
	s := leasedSubscription(time.Hour, handlers...) // completions may wait for a lock for as long
	s.EventType, s.Channel = slowType, events.ChannelName(pgtest.Generation, "slow")
	return s
}

// A class with a backlog of slow work delays no other class in the same process, with only the connections that its
// consumers need: executions, completions and row-locked handlers all wait.
func aSlowClassDelaysNoOther(b *bundle) {
	const backlog, completes, quick = 60, 40, 50 // the first events reach their completions
	holder := b.lockContended(completes)
	executing, handling := b.newGate(), b.newGate()
	leasedSlow := slowSubscription(executor("platform.slow",
		func(ctx context.Context, e events.Envelope) (events.Completion, error) {
			if payloadN(e) >= completes {
				if err := executing.wait(ctx); err != nil {
					return nil, err
				}
			}
			return func(ctx context.Context, tx events.Tx) error {
				if err := updateContended(ctx, tx, e); err != nil {
					return err
				}
				return writeEffect("platform.slow")(ctx, tx, e)
			}, nil
		}))
	leasedSlow.Concurrency = backlog
	fastRetry := subscription(effectHandler("platform.quick"))
	rowLockedSlow := subscription(gatedHandler("worlds.row_locked", handling))
	rowLockedSlow.EventType, rowLockedSlow.Channel = rowLockedSlowType, leasedSlow.Channel
	connections := worker.Connections(fastRetry, false) + worker.Connections(leasedSlow, false) +
		worker.Connections(rowLockedSlow, false)
	b.poolURL += fmt.Sprintf("&pool_max_conns=%d", connections)
	l := b.startWorker(noPoll, fastRetry, leasedSlow, rowLockedSlow)
	var all []events.Envelope
	for n := range backlog {
		all = append(all, slow(n), ofType(rowLockedSlowType, event(n)))
	}
	b.publish(all...)
	executing.awaitAll(b.T, backlog-completes)
	handling.awaitAll(b.T, rowLockedSlow.WithDefaults().Concurrency)
	b.eventually("waiting completions and row-locked handlers", func() bool {
		return one[int](b, `select count(*) from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and a.datname = current_database()`) == 2
	})
	b.publishMany(quick)
	l.awaitDelivered(quick) // while all slow events wait
	b.wantEffects(map[string]int{"platform.quick": quick})
	b.rollback(holder)
	executing.release()
	handling.release()
	l.awaitDelivered(len(all))
	b.wantEffects(map[string]int{"platform.quick": quick, "platform.slow": backlog, "worlds.row_locked": backlog})
}
