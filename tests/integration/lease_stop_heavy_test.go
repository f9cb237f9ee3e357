//go:build heavy

package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// However many completions wait for a lock of what they write to, all are given back when the worker stops, but for those
// whose own rows are locked, which hold up no others.
func TestStoppingGivesBackWhatWaitsForLocks(t *testing.T) {
	b := setup(t)
	b.poolURL += "&pool_max_conns=2" // so that some wait for connections, too
	log := new(notes)
	b.log = logTo(log)
	b.exec("create table platform.contended (n int); insert into platform.contended values (1); grant all on platform.contended to spectral_platform")
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; update platform.contended set n = 2")
	must(t, err)
	g := newGate()
	t.Cleanup(g.letOn)
	contending := executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if _, err := tx.Exec(ctx, "update platform.contended set n = 3"); err != nil {
				return err
			}
			return effect(worker1)(ctx, tx, e)
		}, g.pass(ctx)
	})
	s := leasing(time.Minute, contending)
	s.Concurrency = 40
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	all := b.publishMany(40)
	g.awaitAll(t, len(all))
	g.letOn()
	b.eventually("the completions wait", b.somebodyWaits)
	const locked = 6
	b.lockRows(locked)
	l.stopNow()
	b.wantGivenBack(len(all) - locked)
	if n := one[int](b, "select count(*) from core.outbox where status = 'in_flight' and attempts = 1"); n != locked {
		t.Errorf("%d are left to their leases", n)
	}
	if given, left := log.count(givenBack), log.count(leftInFlight); given != len(all)-locked || left != locked {
		t.Errorf("it is said that %d were given back, and %d left in flight", given, left)
	}
	if log.count("did not end within") > 0 {
		t.Error("it is said that they took too long, while it was the stop that cut them off")
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(t, err)
	next := b.listen(never, leasing(time.Minute, contending))
	next.delivered(len(all) - locked)
	b.wantEffects(map[string]int{worker1: len(all) - locked})
}

// What failed before is recorded, when a co-handler's completion is given up.
func TestStoppingRecordsFailuresBesideWhatWaits(t *testing.T) {
	b := setup(t)
	e := event(1)
	e.IdempotencyKey = "held"
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin")
	must(t, err)
	_, err = holder.Exec(b.ctx, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		values ($1, 'worlds:-:held', gen_random_uuid(), $2, 'operational')`, worker2, happenedType)
	must(t, err)
	l := b.newListener(never, pgtest.Generation, leasing(6*time.Second,
		executor(worker1, func(context.Context, events.Envelope) (events.Completion, error) {
			return nil, events.Terminal(errRefusing)
		}),
		completing(worker2)))
	l.start()
	b.publish(e)
	b.eventually("it waits for its key", b.somebodyWaits)
	l.stopNow()
	r := b.wantRow(e.EventID, "pending", 1)
	if f := r.Failures[worker1]; !f.Parked || len(r.Failures) != 1 {
		t.Errorf("%+v", r)
	}
}

// holdCommits has the COMMIT of whatever leaves an effect wait until the returned connection unlocks 7.
func (b *bundle) holdCommits() *pgx.Conn {
	b.Helper()
	b.exec(`create function public.wait() returns trigger language plpgsql as $$ begin
			loop
				begin
					perform pg_advisory_xact_lock_shared(7);
					return null;
				exception when query_canceled then null; -- deaf to it, as a COMMIT that waits for a standby
				end;
			end loop;
		end $$;
		create constraint trigger waits after insert on platform.effects deferrable initially deferred for each row execute function public.wait()`)
	holder := pgtest.Conn(b.T, b.url)
	_, err := holder.Exec(b.ctx, "select pg_advisory_lock(7)")
	must(b.T, err)
	return holder
}

// aCommitWaits reports whether one does.
func (b *bundle) aCommitWaits() bool {
	return one[bool](b, `select exists (select from pg_locks l join pg_stat_activity a using (pid)
		where not l.granted and l.locktype = 'advisory' and a.datname = current_database() and a.query ~* '^commit')`)
}

// What may still be committed is not given back: the server has the COMMIT, and its answer was lost.
func TestStoppingGivesNothingBackThatMayBeCommitted(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	holder := b.holdCommits()
	l := b.newListener(never, pgtest.Generation, leasing(6*time.Second, completing(worker1)))
	l.start()
	e := event(1)
	b.publish(e)
	b.eventually("the COMMIT waits", b.aCommitWaits)
	b.sockets.cut()
	l.stopNow()
	b.wantRow(e.EventID, "in_flight", 1)
	_, err := holder.Exec(b.ctx, "select pg_advisory_unlock(7)")
	must(t, err)
	b.eventually("it is committed", func() bool {
		return one[bool](b, "select status = 'delivered' from core.outbox where id = $1", e.EventID)
	})
	b.wantEffects(map[string]int{worker1: 1})
}

// givenBack is what the log says, once, of an event whose handler was done.
const givenBack = `"msg":"not settled: it was given back`

// What is committed while it is given up is not given back, and it is said what it is: delivered.
func TestStoppingReportsWhatIsCommittedAtLast(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	log := new(notes)
	b.log = logTo(log)
	holder := b.holdCommits()
	l := b.newListener(never, pgtest.Generation, leasing(time.Minute, completing(worker1)))
	l.start()
	e := event(1)
	b.publish(e)
	b.eventually("the COMMIT waits", b.aCommitWaits)
	b.sockets.cut()
	began := one[time.Time](b, "select clock_timestamp()")
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		stopped <- l.Stop(ctx)
	}()
	b.eventually("the time for what handlers have done is over", func() bool {
		return one[bool](b, "select clock_timestamp() > $1::timestamptz + interval '6.05 s'", began)
	})
	_, err := holder.Exec(b.ctx, "select pg_advisory_unlock(7)")
	must(t, err)
	must(t, within(t, stopped))
	b.wantRow(e.EventID, "delivered", 1)
	l.delivered(1)
	b.wantEffects(map[string]int{worker1: 1})
	if n := log.count(givenBack) + log.count(leftInFlight) + log.count("lease lost"); n > 0 {
		t.Errorf("%d times it is said that it was not settled", n)
	}
}

// What somebody has locked as a worker stops is given back, too, if that ends while there is time.
func TestStoppingOutlastsLocks(t *testing.T) {
	b := setup(t)
	log := new(notes)
	b.log = logTo(log)
	const all, locked = 20, 5
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = all
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	b.publishMany(all)
	g.awaitAll(t, all)
	locking := b.lockRows(locked)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.stopNow()
	}()
	b.eventually("they stay locked for longer than some tries take", func() bool {
		return one[bool](b, "select count(*) = $1 and max(available_at) < clock_timestamp() - interval '1.5 s' from core.outbox where status = 'pending'", all-locked)
	})
	_, err := locking.Exec(b.ctx, "rollback")
	must(t, err)
	within(t, stopped)
	b.wantGivenBack(all)
	if n := log.count(leftInFlight); n > 0 {
		t.Errorf("of %d it is said that they are left", n)
	}
}

// A COMMIT that is slow by itself, and waits for nobody, is not cut off but once, in its batch.
func TestSlowCommitsOfShortLeasesCount(t *testing.T) {
	b := setup(t)
	b.exec(`create table platform.slow (n int); grant all on platform.slow to spectral_platform;
		create function platform.dawdle() returns trigger language plpgsql as $$ begin perform pg_catalog.pg_sleep(1.5); return null; end $$;
		create constraint trigger dawdles after insert on platform.slow deferrable initially deferred for each row execute function platform.dawdle()`)
	const all = 4
	var executed atomic.Int32
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(5*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		executed.Add(1)
		return func(ctx context.Context, tx events.Tx) error {
			if _, err := tx.Exec(ctx, "insert into platform.slow values (1)"); err != nil {
				return err
			}
			return effect(worker1)(ctx, tx, e)
		}, g.pass(ctx)
	}))
	l := b.listen(time.Second, s)
	b.publishMany(all)
	g.awaitAll(t, all)
	g.letOn()
	l.delivered(all)
	b.wantEffects(map[string]int{worker1: all})
	if n := executed.Load(); n != all {
		t.Errorf("%d executions of %d events", n, all)
	}
}

// The worker waits for a database that is away as it stops, for as long as there is time, and gives back what it has then.
func TestStoppingOutlastsAnOutage(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	const all = 10
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = all
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	b.publishMany(all)
	g.awaitAll(t, all)
	b.sockets.reach(refusing)
	b.sockets.cut()
	before := b.sockets.count()
	began := one[time.Time](b, "select clock_timestamp()")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.stopNow()
	}()
	b.eventually("it has been away for a while", func() bool {
		return one[bool](b, "select clock_timestamp() > $1::timestamptz + interval '4 s'", began)
	})
	if n := b.sockets.count() - before; n == 0 || n > 60 {
		t.Errorf("%d connections were tried in 4 s", n)
	}
	b.sockets.reach(nil)
	within(t, stopped)
	b.wantGivenBack(all)
}

// What cannot be written in time is left in flight, and said of each event, once.
func TestStoppingSaysWhatIsLeft(t *testing.T) {
	b := setup(t)
	log := new(notes)
	b.log = logTo(log)
	const all = 2
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		if err := g.pass(ctx); payloadN(e)%2 == 0 {
			return nil, err
		}
		return completion(worker1, e), nil
	}))
	s.Concurrency = all
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	b.publishMany(all)
	g.awaitAll(t, all)
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; lock table core.outbox in share mode")
	must(t, err)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	if err := l.Stop(ctx); err == nil || !strings.Contains(err.Error(), "could not all be written") {
		t.Errorf("it stopped with: %v", err)
	}
	if n := log.count(leftInFlight); n != all {
		t.Errorf("of %d it is said that they are left, of %d", n, all)
	}
	within(t, l.Done()) // what goes on meanwhile gives up, too
	if n := log.count(leftInFlight); n != all {
		t.Errorf("it is said %d times", n)
	}
}

// Innocents that nobody can tell from what waits for a key are settled while it waits, also as the worker stops.
func TestStoppingLosesNothingBesideHeldKeys(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(map[bool]string{false: "at work", true: "stopping"}[stops], func(t *testing.T) {
			b := setupAlone(t, 4*patience)
			const all, held = 60, 4
			var published []events.Envelope
			for n := range all {
				e := event(n)
				e.IdempotencyKey = fmt.Sprintf("key %d", n)
				published = append(published, e)
			}
			holder := pgtest.Conn(t, b.url)
			_, err := holder.Exec(b.ctx, "begin")
			must(t, err)
			_, err = holder.Exec(b.ctx, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
				select $1, 'worlds:-:key ' || 5 * n, gen_random_uuid(), $2, 'operational' from generate_series(0, $3::int - 1) as n`, worker1, happenedType, held)
			must(t, err)
			g := newGate()
			t.Cleanup(g.letOn)
			s := leasing(time.Minute, gated(worker1, g))
			s.Concurrency = all
			l := b.newListener(never, pgtest.Generation, s)
			l.start()
			b.publish(published...)
			g.awaitAll(t, all)
			g.letOn()
			if !stops {
				l.soon(all-held, 8*time.Second)
				_, err = holder.Exec(b.ctx, "rollback")
				must(t, err)
				l.delivered(held)
				b.wantLeasesKept(all)
				return
			}
			b.eventually("they wait for a key", b.somebodyWaits)
			l.stopNow()
			b.wantGivenBack(held)
			if n := one[int](b, "select count(*) from core.outbox where status = 'delivered'"); n != all-held {
				t.Errorf("%d of %d are delivered", n, all-held)
			}
		})
	}
}

// Rows that somebody has locked are asked about ever more rarely, and it is said that they are waited for.
func TestLeasesOfLockedRowsAreNoHotLoop(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	log := new(notes)
	b.log = logTo(log)
	const all = 100
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, gated(worker1, g), completing(worker2))
	s.Concurrency = all
	l := b.listen(never, s)
	b.publishMany(all)
	g.awaitAll(t, all)
	locking := b.lockRows(all)
	g.letOn()
	after := func(since time.Time, interval string) func() bool {
		return func() bool {
			return one[bool](b, "select clock_timestamp() > $1::timestamptz + $2::text::interval", since, interval)
		}
	}
	began := one[time.Time](b, "select clock_timestamp()")
	b.eventually("they have waited for a while", after(began, "2 s"))
	before := b.sockets.statements.Load()
	b.eventually("and for longer", after(began, "5 s"))
	if n := b.sockets.statements.Load() - before; n > 1_700 {
		t.Errorf("%d statements in 3 s for %d rows", n, all)
	}
	b.eventually("it is said", func() bool { return log.count("settling waits for another transaction") == all })
	_, err := locking.Exec(b.ctx, "rollback")
	must(t, err)
	l.soon(all, 5*time.Second)
	b.wantEffects(map[string]int{worker1: all, worker2: all})
}
