//go:build heavy

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
)

// A thousand short leases, some of the work longer than they are, by workers that are killed, stopped in
// order, and frozen until their leases have run out, at random.
func TestLeasesInAStorm(t *testing.T) {
	const (
		steps   = 25
		perStep = 40
		lease   = 1500 * time.Millisecond
	)
	s := seed(t)
	random := rand.New(rand.NewPCG(s, s))
	jitter := rand.New(rand.NewPCG(s, s+1)) // published by one goroutine
	takes := func(int) time.Duration {
		switch n := jitter.IntN(10); {
		case n < 6:
			return time.Duration(20+jitter.IntN(300)) * time.Millisecond
		case n < 9:
			return time.Duration(300+jitter.IntN(900)) * time.Millisecond
		default:
			return lease + time.Duration(jitter.Int64N(int64(lease)))
		}
	}
	// who happens to be at work when one worker after the other is killed is not to become a dead letter here
	b := setup(t).leased(errands{Lease: lease, Concurrency: 16, Escorted: true, Retries: 50, Grace: time.Second}, takes)
	supervisors := make([]*process.Supervisor, 3)
	for i := range supervisors {
		supervisors[i] = process.Supervise(t, b.command(b.worker, ""), restartPause)
	}
	done := make(map[string]int)
	var thawing sync.WaitGroup
	for step := range steps {
		keys := make([]string, perStep)
		for i := range keys {
			keys[i] = neighbour(step*perStep + i + 1)
			if random.IntN(20) == 0 {
				keys[i] = fmt.Sprintf("%s-%s", doBalk, keys[i])
			}
		}
		b.publish(keys...)
		meanwhile(t, time.Duration(300+random.IntN(700))*time.Millisecond)
		victim := supervisors[random.IntN(len(supervisors))].Current()
		switch n := random.IntN(10); {
		case n < 4:
			done["killed"]++
			victim.Kill()
		case n < 7:
			done["terminated"]++
			victim.Signal(syscall.SIGTERM)
		default:
			done["frozen"]++
			victim.Freeze()
			pause := lease + time.Duration(random.Int64N(int64(lease)))
			thawing.Add(1)
			time.AfterFunc(pause, func() {
				defer thawing.Done()
				victim.Thaw()
			})
		}
	}
	thawing.Wait()
	restarts, lost := 0, 0
	for _, s := range supervisors {
		restarts += s.Restarts()
	}
	b.ledger.Verify(t, b.direct(), ledger.Expect{Within: 3 * patience, MaxAttempts: 50})
	for _, s := range supervisors {
		for _, p := range s.Processes() {
			lost += p.Count(leaseLost)
		}
	}
	t.Logf("%v, %d restarts, %d leases that their workers found lost", done, restarts, lost)
	totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: 50})
	if totals.Events != steps*perStep || totals.Leases["delivered"] != steps*perStep {
		t.Error(totals)
	}
	for _, end := range []string{"reaped", "released", "retried"} {
		if totals.Because[end] == 0 {
			t.Errorf("no lease was %s: the storm was none", end)
		}
	}
	if lost == 0 {
		t.Error("no worker has lost a lease: the storm was none")
	}
}

func TestCommitOfALeaseIsLost(t *testing.T) {
	for name, verdict := range map[string]proxy.Verdict{
		"before it arrives": proxy.Cutoff, "in the middle of it": proxy.Tear, "the answer never comes": proxy.Hush,
	} {
		for at := range commits {
			t.Run(at+"/"+name, func(t *testing.T) { losesCommitOfALease(t, at, verdict) })
		}
	}
}

// A worker that stops, and is not answered as it gives its event back.
func TestCommitOfAReleaseIsLost(t *testing.T) {
	const key = doAwait + "-1"
	for name, verdict := range map[string]proxy.Verdict{
		"before it arrives":    proxy.Cutoff,
		"after it has arrived": proxy.ForwardThenCut,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t).leased(errands{Lease: 3 * time.Second, Grace: time.Millisecond}, nil)
			pool := proxy.InFrontOf(t, b.worker)
			filter, hit := proxy.Nth(1, verdict, proxy.CommitOf("outbox_release"))
			pool.Filter(filter)
			old := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
			old.Await(t, listening, 1, patience)
			b.publish(key)
			b.awaitBegun(key, 1)
			next := b.run()
			old.Signal(syscall.SIGTERM)
			old.AwaitExit(t, patience)
			select {
			case <-hit:
			default:
				t.Fatal("nothing was released")
			}
			if second := b.awaitBegun(key, 2); second.PID != next.PID() {
				t.Errorf("the second execution is %+v", second)
			}
			b.open(key)
			totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
			if totals.Repeats != 1 || totals.Because["released"] != 1 {
				t.Error(totals)
			}
		})
	}
}

// A worker that freezes while it holds locks keeps others from its row, or from reaping at all, until the server
// ends its transaction: no longer than that, and it changes nothing afterwards.
func TestFrozenInATransactionOfALease(t *testing.T) {
	const key = doAwait + "-1"
	for at, text := range map[string]string{"settling": "outbox_deliver", "reaping": "outbox_reap"} {
		t.Run(at, func(t *testing.T) {
			b := setup(t).leased(errands{Lease: time.Second}, nil)
			pool := proxy.InFrontOf(t, b.worker)
			filter, hit := proxy.Nth(1, proxy.Freeze, proxy.CommitOf(text))
			pool.Filter(filter)
			frozen := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
			frozen.Await(t, listening, 1, patience)
			if at == "settling" {
				b.publish(key)
				b.awaitBegun(key, 1)
				b.open(key)
			} else {
				other := b.run()
				frozen.Freeze() // so that the other has it
				b.publish(key)
				b.awaitBegun(key, 1)
				other.Kill()
				other.AwaitExit(t, grace)
				b.awaitExpired(key)
				frozen.Thaw()
			}
			select {
			case <-hit:
			case <-time.After(patience):
				t.Fatalf("no COMMIT of %s went through the proxy", text)
			}
			frozen.Freeze()
			other := b.run()
			b.open(key)
			b.eventually("another worker has delivered it", 75*time.Second, func() bool { return b.column(key, "status") == "delivered" })
			settled := b.column(key, "o")
			if last := b.executions(key); last[len(last)-1].PID != other.PID() {
				t.Errorf("the executions are %+v", last)
			}
			frozen.Thaw()
			pool.Filter(nil)
			pool.Cut()
			b.publish(afterwards...)
			b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
			b.wantColumn(key, "o", settled)
			wantRunning(t, []*process.Process{frozen, other})
		})
	}
}

// Stopping must not hang on a database that does not answer, with an event in hand that is to be given back.
func TestTerminatedWithLeasesAndWithoutDatabase(t *testing.T) {
	const key = doAwait + "-1"
	for name, mode := range map[string]proxy.Mode{"refusing": proxy.Refuse, "silent": proxy.Stall} {
		t.Run(name, func(t *testing.T) {
			b := setup(t).leased(errands{Lease: 3 * time.Second, Grace: time.Second}, nil)
			p := proxy.InFrontOf(t, b.worker)
			worker := process.Start(t, b.command(p.URL(t, b.worker), ""))
			worker.Await(t, listening, 1, patience)
			b.publish(key)
			b.awaitBegun(key, 1)
			p.Set(mode)
			if mode == proxy.Refuse {
				p.Cut()
			}
			worker.Signal(syscall.SIGTERM)
			started := time.Now()
			code := worker.AwaitExit(t, b.Grace+15*time.Second)
			t.Logf("ended after %s with code %d", time.Since(started), code)
			if code == -1 {
				t.Error("the worker was ended by a signal, not by itself")
			}
			p.Set(proxy.Pass)
			b.run()
			b.awaitBegun(key, 2)
			b.open(key)
			totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
			wantEach(t, totals, 2, 1)
		})
	}
}

// A zombie that does not know what became of its COMMIT, which has never arrived, tries again, and
// writes nothing: by then another is at work on the event.
func TestAZombieDoesNotCompleteAgain(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: time.Second, Escorted: true}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, proxy.Cutoff, proxy.CommitOf("faults.effects"))
	pool.Filter(filter)
	zombie := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	zombie.Await(t, listening, 1, patience)
	b.publish(key)
	b.awaitBegun(key, 1)
	b.tell(key, zombie.PID(), "")
	<-hit
	zombie.Await(t, interrupted, 1, patience)
	zombie.Freeze() // before it tries again
	other := b.run()
	b.awaitBegun(key, 2)
	zombie.Thaw()
	zombie.Await(t, leaseLost, 1, patience)
	if n := one[int](b.bundle, "select count(*) from faults.effects"); n > 0 {
		t.Errorf("it has left %d effects", n)
	}
	b.tell(key, other.PID(), "")
	b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
}

// A worker that is told to stop while it asks for the outcome of a claim, of a database that is gone, does
// not ask without pause.
func TestStoppingWithAnUnknownClaim(t *testing.T) {
	b := setup(t).leased(errands{Lease: 30 * time.Second, Grace: 4 * time.Second}, nil)
	p := proxy.InFrontOf(t, b.worker)
	claim := proxy.CommitOf("outbox_lease")
	filter, hit := proxy.Nth(1, proxy.ForwardThenCut, func(m proxy.Message) bool {
		meant := claim(m)
		if meant {
			p.Set(proxy.Refuse)
		}
		return meant
	})
	p.Filter(filter)
	worker := process.Start(t, b.command(p.URL(t, b.worker), ""))
	worker.Await(t, listening, 1, patience)
	b.publish(neighbour(1))
	<-hit
	p.Cut()
	worker.Signal(syscall.SIGTERM)
	worker.AwaitExit(t, b.Grace+grace)
	if n := len(p.Accepted()); n > 50 {
		t.Errorf("%d connection attempts within %s", n, b.Grace)
	}
	b.awaitStatus(neighbour(1), "in_flight")
}

// many are keys of errands that await their gates.
func many(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", doAwait, i)
	}
	return keys
}

// awaitAllTold returns when the first executions of all keys have ended, as they were told.
func (b *leased) awaitAllTold(keys []string, what string) {
	b.Helper()
	b.eventually("the first executions are told: "+what, patience, func() bool {
		all, err := b.diary().Read()
		must(b.T, err)
		told := make(map[string]bool)
		for _, e := range all {
			if strings.HasPrefix(e.Ended, what) {
				told[e.Key] = true
			}
		}
		return len(told) == len(keys)
	})
}

// awaitAllBegun returns when the n-th executions of all keys have begun.
func (b *leased) awaitAllBegun(keys []string, n int) {
	b.Helper()
	b.eventually("all are being worked on", patience, func() bool {
		all, err := b.diary().Read()
		must(b.T, err)
		times := make(map[string]int)
		for _, e := range all {
			times[e.Key]++
		}
		for _, key := range keys {
			if times[key] < n {
				return false
			}
		}
		return true
	})
}

// wantEach fails unless so many executions of all were needed, and because of what.
func wantEach(t *testing.T, totals ledger.Totals, executions, reaped int) {
	t.Helper()
	if totals.Executions != executions || totals.Leases["reaped"] != reaped || totals.Repeats != totals.Because["reaped"] {
		t.Errorf("%v; want %d executions and %d leases reaped", totals, executions, reaped)
	}
}

// The server crashes while a hundred leases are in flight. If it is back before they run out, nothing has
// happened; half of the work ends while it is away. If not, all of it is done again, and nobody is charged.
func TestServerCrashesUnderLeases(t *testing.T) {
	keys := many(100)
	for name, c := range map[string]struct {
		lease time.Duration
		out   bool // the leases run out
	}{
		"shorter than a lease": {time.Minute, false},
		"longer than a lease":  {time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			outer, s, _ := setupServer(t, nil)
			b := outer.leased(errands{Lease: c.lease, Concurrency: len(keys)}, nil)
			worker := b.run()
			b.publish(keys...)
			b.awaitAllBegun(keys, 1)
			s.Crash(t, syscall.SIGQUIT)
			if c.out {
				b.awaitAllTold(keys, events.ErrLeaseLost.Error())
			} else {
				b.open(keys[:50]...)
				b.awaitAllTold(keys[:50], ledger.Done)
			}
			s.Start(t)
			b.open(keys...)
			executions, reaped, attempts := len(keys), 0, 1
			if c.out {
				executions, reaped, attempts = 2*len(keys), len(keys), 2
			}
			totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: attempts})
			wantEach(t, totals, executions, reaped)
			if n := one[int](b.bundle, "select count(*) from core.outbox where handler_failures <> '{}'"); n > 0 {
				t.Errorf("%d events are charged with a failure", n)
			}
			wantRunning(t, []*process.Process{worker})
		})
	}
}

// hoarder takes every connection that a server has.
type hoarder struct {
	*leased
	conns []*pgx.Conn
}

// hoard takes them until no worker has one.
func (b *leased) hoard() *hoarder {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	h := &hoarder{leased: b}
	for {
		conn, err := pgx.Connect(ctx, b.direct())
		if err == nil {
			h.conns = append(h.conns, conn)
			continue
		}
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != pgerrcode.TooManyConnections {
			b.Fatal(err)
		}
		var ended int
		must(b.T, h.conns[0].QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity
			where backend_type = 'client backend' and usename <> 'postgres'`).Scan(&ended))
		if ended == 0 {
			return h
		}
	}
}

// letGo gives them back.
func (h *hoarder) letGo() {
	h.Helper()
	for _, conn := range h.conns {
		must(h.T, conn.Close(h.Context()))
	}
}

// The server has no connection left for the worker, while its work goes on and ends.
func TestNoConnectionsUnderLeases(t *testing.T) {
	keys := many(20)
	for name, c := range map[string]struct {
		lease time.Duration
		out   bool // the leases run out
	}{
		"for less than a lease": {time.Minute, false},
		"for more than a lease": {time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			outer, _, _ := setupServer(t, map[string]string{"max_connections": "30"})
			b := outer.leased(errands{Lease: c.lease, Concurrency: len(keys)}, nil)
			worker := b.run()
			b.publish(keys...)
			b.awaitAllBegun(keys, 1)
			h := b.hoard()
			executions, reaped, attempts := len(keys), 0, 1
			if c.out {
				b.awaitAllTold(keys, events.ErrLeaseLost.Error())
				executions, reaped, attempts = 2*len(keys), len(keys), 2
			} else {
				b.open(keys...)
				b.awaitAllTold(keys, ledger.Done)
				worker.Await(t, interrupted, 1, patience)
			}
			h.letGo()
			b.open(keys...)
			totals := b.verify(ledger.Expect{Within: 2 * patience, MaxAttempts: attempts})
			wantEach(t, totals, executions, reaped)
			wantRunning(t, []*process.Process{worker})
		})
	}
}

// Work that holds every connection of the pool that dispatches, for longer than a lease: it must not cost the
// leases, only time.
func TestWorkThatUsesUpTheDispatchingPool(t *testing.T) {
	b := setup(t).leased(errands{Lease: time.Second, Concurrency: 24}, func(int) time.Duration { return 2500 * time.Millisecond })
	worker := b.run()
	keys := make([]string, 24)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", doHog, i)
	}
	b.publish(keys...)
	totals := b.verify(ledger.Expect{Within: patience})
	wantEach(t, totals, len(keys), 0)
	wantRunning(t, []*process.Process{worker})
}

// Work with a pool of its own, which takes more connections than the server has: some of it fails for want of
// one, and is retried.
func TestWorkThatUsesUpTheServer(t *testing.T) {
	outer, _, _ := setupServer(t, map[string]string{"max_connections": "30"})
	s := seed(t)
	jitter := rand.New(rand.NewPCG(s, s))
	b := outer.leased(errands{Lease: 2 * time.Second, Concurrency: 20, Retries: 100000, Calls: outer.worker, MaxCalls: 20},
		func(int) time.Duration { return time.Duration(200+jitter.IntN(2500)) * time.Millisecond })
	running := []*process.Process{b.run(), b.run()}
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", doCall, i)
	}
	b.publish(keys...)
	totals := b.verify(ledger.Expect{Within: 2 * patience, MaxAttempts: 100000})
	if totals.Because["retried"] == 0 {
		t.Error("no connection was refused: nothing was put to the test")
	}
	wantRunning(t, running)
}

// An event that ends its process, alone: each time is charged, and it is a dead letter after its last retry.
func TestALoneKillerOfLeases(t *testing.T) {
	for _, do := range []string{doKill, doExit} {
		t.Run(do, func(t *testing.T) {
			key := do + "-1"
			b := setup(t).leased(errands{Lease: 500 * time.Millisecond}, nil)
			b.publish(key)
			process.Supervise(t, b.command(b.worker, ""), restartPause)
			attempts := 1 + events.DefaultRetryPolicy.MaxRetries
			b.verify(ledger.Expect{Within: 2 * patience, Failed: map[string]ledger.Dead{key: {Attempts: attempts}}})
			b.wantExecuted(key, attempts)
			b.wantColumn(key, "handler_failures -> '"+runner+"' ->> 'class'", "LeaseExpired")
		})
	}
}

// Beside others it has to be found out first: they are delivered, whatever it did to them.
func TestAKillerOfLeasesAmongOthers(t *testing.T) {
	quick := func(n int) time.Duration { return time.Duration(100+37*(n%11)) * time.Millisecond }
	// these are at work whenever it strikes
	slow := func(int) time.Duration { return 1500 * time.Millisecond }
	t.Run(doKill, func(t *testing.T) { killsAmongOthers(t, doKill, quick) })
	t.Run(doExit, func(t *testing.T) { killsAmongOthers(t, doExit, quick) })
	t.Run("beside slow ones", func(t *testing.T) { killsAmongOthers(t, doKill, slow) })
}

func killsAmongOthers(t *testing.T, do string, takes func(int) time.Duration) {
	t.Helper()
	const neighbours, concurrency = 30, 8
	killer := do + "-1"
	b := setup(t).leased(errands{Lease: 500 * time.Millisecond, Concurrency: concurrency}, takes)
	keys := []string{killer}
	for i := range neighbours {
		keys = append(keys, neighbour(i+1))
	}
	keys[0], keys[4] = keys[4], keys[0]
	b.publish(keys...)
	s := process.Supervise(t, b.command(b.worker, ""), restartPause)
	b.awaitStatus(killer, "failed")
	// until it is alone among those that a worker died of, at half of the concurrency, a quarter and one, and
	// then as often as a lone one
	charged := 1 + events.DefaultRetryPolicy.MaxRetries
	attempts := one[int](b.bundle, "select attempts from core.outbox where payload ->> 'key' = $1", killer)
	if most := 3 + charged; attempts < charged || attempts > most {
		t.Errorf("the killer had %d attempts, want %d to %d", attempts, charged, most)
	}
	b.wantExecuted(killer, attempts)
	b.wantColumn(killer, "handler_failures -> '"+runner+"' ->> 'failures'", strconv.Itoa(charged))
	b.wantColumn(killer, "handler_failures -> '"+runner+"' ->> 'class'", "LeaseExpired")
	b.verify(ledger.Expect{Within: patience, MaxAttempts: attempts, Failed: map[string]ledger.Dead{killer: {Attempts: attempts}}})
	accused := one[int](b.bundle, "select count(*) from core.outbox where status = 'delivered' and handler_failures <> '{}'")
	if accused > 0 {
		t.Errorf("%d of its neighbours are charged with a failure", accused)
	}
	t.Logf("%d restarts, the killer had %d attempts; of its neighbours %d died with it, %v times", s.Restarts(), attempts,
		one[int](b.bundle, "select count(*) from core.outbox where status = 'delivered' and crashes > 0"),
		one[[]int](b.bundle, "select array_agg(crashes) from core.outbox where status = 'delivered' and crashes > 0"))
}

// Work that does not even look at its context is left behind, and its place is another's.
func TestWorkThatIgnoresItsContextIsLeftBehind(t *testing.T) {
	const key = doIgnore + "-1"
	b := setup(t).leased(errands{Lease: 3 * time.Second, Concurrency: 1, Timeout: time.Second, Retries: 1}, nil)
	worker := b.run()
	b.publish(key, neighbour(1))
	b.verify(ledger.Expect{Within: patience, Failed: map[string]ledger.Dead{key: {Attempts: 2}}})
	b.wantExecuted(key, 2)
	b.wantColumn(key, "handler_failures -> '"+runner+"' ->> 'class'", "TimeoutError")
	settled := b.column(key, "o")
	b.open(key) // what they bring is nobody's any more
	b.awaitAllTold([]string{key}, ledger.Done)
	b.publish(neighbour(2))
	b.awaitStatus(neighbour(2), "delivered")
	b.wantColumn(key, "o", settled)
	wantRunning(t, []*process.Process{worker})
}

// A worker dies with two events in hand, one of which was leased a moment after the other.
func TestNeitherOfTwoIsCharged(t *testing.T) {
	const first, second = doAwait + "-1", doAwait + "-2"
	b := setup(t).leased(errands{Lease: 2 * time.Second}, nil)
	worker := b.run()
	b.publish(first)
	b.awaitBegun(first, 1)
	b.publish(second)
	b.awaitBegun(second, 1)
	worker.Kill()
	worker.AwaitExit(t, grace)
	b.run()
	b.awaitBegun(first, 2)
	b.awaitBegun(second, 2)
	b.wantColumn(first, "handler_failures", "{}")
	b.wantColumn(second, "handler_failures", "{}")
	b.open(first, second)
	b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
}

// A connection that goes silent under a heartbeat is not to cost the lease: two thirds of it are
// left for the next one.
func TestASilentHeartbeatDoesNotCostTheLease(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: 6 * time.Second}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, proxy.Hush, proxy.CommitOf("outbox_heartbeat"))
	pool.Filter(filter)
	worker := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	worker.Await(t, listening, 1, patience)
	b.publish(key)
	<-hit
	worker.Await(t, notRenewed, 1, patience)
	b.open(key)
	b.verify(ledger.Expect{Within: patience})
	b.wantExecuted(key, 1)
}
