//go:build heavy

package faults_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
)

// commits of leased work, and what is lost if nobody knows what became of one.
var commits = map[string]struct {
	text  string // of a statement of its transaction
	key   string
	lease time.Duration
	runs  int // executions, of which all but the last fail
}{
	"claim":     {"outbox_lease", neighbour(1), time.Hour, 1},
	"settle":    {"outbox_deliver_leased", neighbour(1), time.Hour, 1},
	"retry":     {"outbox_retry_leased", doBalk + "-1", time.Hour, 2},
	"heartbeat": {"outbox_heartbeat", doAwait + "-1", lease, 1},
}

// losesCommitOfALease does that to a COMMIT. Nobody may wait for a lease to run out because of it, and
// what was executed is not executed again.
func losesCommitOfALease(t *testing.T, at string, verdict proxy.Verdict) {
	t.Helper()
	c := commits[at]
	b := setup(t).leased(errands{Lease: c.lease}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, verdict, proxy.CommitOf(c.text))
	pool.Filter(filter)
	worker := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	worker.Await(t, listening, 1, testTimeout)
	b.publish(c.key, neighbour(2), neighbour(3))
	select {
	case <-hit:
	case <-time.After(testTimeout):
		t.Fatalf("no COMMIT of %s went through the proxy", c.text)
	}
	if at == "heartbeat" {
		worker.Await(t, notRenewed, 1, testTimeout)
	}
	b.open(c.key)
	totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: c.runs})
	if totals.Executions != c.runs+2 || totals.Leases["reaped"] > 0 {
		t.Error(totals)
	}
	b.publish(afterwards...) // and it goes on
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: c.runs})
	worker.Signal(syscall.SIGTERM)
	if code := worker.AwaitExit(t, grace+testTimeout); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestZombiesWriteNothingHoweverTheyEnd(t *testing.T) {
	for name, tell := range map[string]string{"when it retries": refuse, "when it fails": refuseForGood, "when it renews": "nothing"} {
		t.Run(name, func(t *testing.T) {
			zombieWritesNothing(t, func(b *leased, zombie *process.Process) {
				if tell != "nothing" {
					b.tell(zombieKey, zombie.PID(), tell)
				}
				zombie.Thaw()
				zombie.Await(t, leaseLost, 1, testTimeout)
			})
		})
	}
	t.Run("when it releases", func(t *testing.T) {
		zombieWritesNothing(t, func(_ *leased, zombie *process.Process) {
			zombie.Signal(syscall.SIGTERM)
			zombie.Thaw()
			zombie.AwaitExit(t, grace)
		})
	})
}

func TestLostCommitsOfLeasesRepeatNothing(t *testing.T) {
	for at, verdict := range map[string]proxy.Verdict{
		"claim": proxy.ForwardThenCut, "settle": proxy.ForwardThenCut, "retry": proxy.Tear, "heartbeat": proxy.Cutoff,
	} {
		t.Run(at, func(t *testing.T) { losesCommitOfALease(t, at, verdict) })
	}
}

// Stopping must not hang on a database that does not answer.
func TestWorkersStopWithLeasesAndWithoutDatabase(t *testing.T) {
	const key = doAwait + "-1"
	for name, mode := range map[string]proxy.Mode{"refusing": proxy.Refuse, "silent": proxy.Stall} {
		t.Run(name, func(t *testing.T) {
			b := setup(t).leased(errands{Lease: lease, Grace: time.Second}, nil)
			p := proxy.InFrontOf(t, b.worker)
			worker := process.Start(t, b.command(p.URL(t, b.worker), ""))
			worker.Await(t, listening, 1, testTimeout)
			b.publish(key)
			b.awaitBegun(key, 1)
			p.Set(mode)
			if mode == proxy.Refuse {
				p.Cut()
			}
			worker.Signal(syscall.SIGTERM)
			if code := worker.AwaitExit(t, b.Grace+testTimeout); code == -1 {
				t.Error("the worker was ended by a signal, not by itself")
			}
			p.Set(proxy.Pass)
			b.expire()
			b.run()
			b.awaitBegun(key, 2)
			b.open(key)
			totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
			if totals.Executions != 2 || totals.Leases["reaped"] != 1 {
				t.Error(totals)
			}
		})
	}
}

// A zombie whose COMMIT has never arrived tries again, and writes nothing.
func TestAZombieDoesNotCompleteAgain(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: lease, Escorted: true}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	commit := proxy.CommitOf("faults.effects")
	filter, hit := proxy.Nth(1, proxy.Cutoff, func(m proxy.Message) bool {
		meant := commit(m)
		if meant {
			pool.Set(proxy.Refuse)
		}
		return meant
	})
	pool.Filter(filter)
	zombie := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	zombie.Await(t, listening, 1, testTimeout)
	b.publish(key)
	b.awaitBegun(key, 1)
	b.tell(key, zombie.PID(), "")
	<-hit
	zombie.Freeze() // before it tries again
	pool.Set(proxy.Pass)
	b.expire()
	other := b.run()
	b.awaitBegun(key, 2)
	zombie.Thaw()
	zombie.Await(t, leaseLost, 1, testTimeout)
	if n := one[int](b.bundle, "select count(*) from faults.effects"); n > 0 {
		t.Errorf("it has left %d effects", n)
	}
	b.tell(key, other.PID(), "")
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
}

// many are keys of errands that await their gates.
func many(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", doAwait, i)
	}
	return keys
}

// awaitAllBegun returns when the n-th executions of all keys have begun.
func (b *leased) awaitAllBegun(keys []string, n int) {
	b.Helper()
	b.eventually("all are being worked on", testTimeout, func() bool {
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

// The server crashes while a hundred leases are in flight, half of whose work ends while it is away. If their leases hold,
// nothing is repeated; else all that is not settled is, and nobody is charged.
func TestServerCrashesUnderLeases(t *testing.T) {
	keys := many(100)
	for name, out := range map[string]bool{"the leases hold": false, "the leases run out": true} {
		t.Run(name, func(t *testing.T) {
			outer, s, _ := setupServer(t, nil)
			b := outer.leased(errands{Lease: time.Minute, Concurrency: len(keys)}, nil)
			worker := b.run()
			b.publish(keys...)
			b.awaitAllBegun(keys, 1)
			s.Crash(t, syscall.SIGQUIT)
			executions, attempts := len(keys), 1
			if !out {
				b.open(keys[:50]...)
			}
			s.Start(t)
			if out {
				b.expire()
				b.awaitAllBegun(keys, 2)
				executions, attempts = 2*len(keys), 2
			}
			b.open(keys...)
			totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: attempts})
			if totals.Executions != executions || totals.Leases["reaped"] != executions-len(keys) {
				t.Error(totals)
			}
			if n := one[int](b.bundle, "select count(*) from core.outbox where handler_failures <> '{}' or crashes > 0"); n > 0 {
				t.Errorf("%d events are charged with a failure", n)
			}
			wantRunning(t, []*process.Process{worker})
		})
	}
}

// An event that ends its process, alone: each time is charged, and it is a dead letter after its last retry.
func TestALoneKillerOfLeases(t *testing.T) {
	for _, do := range []string{doKill, doExit} {
		t.Run(do, func(t *testing.T) {
			key := do + "-1"
			b := setup(t).leased(errands{Lease: 2 * time.Second}, nil)
			b.publish(key)
			process.Supervise(t, b.command(b.worker, ""), restartPause)
			b.verify(ledger.Expect{Within: 2 * testTimeout, Failed: map[string]ledger.Dead{key: {Attempts: crashLimit}}})
			b.wantExecuted(key, crashLimit)
			b.wantColumn(key, "split_part(last_error, ': ', 1)", "LeaseExpired")
		})
	}
}

// crashLimit is how many crashes fail an event.
const crashLimit = 5

// Among nine others that always run when it strikes, it is found out: they are delivered, and nothing is counted against
// them after the first time.
func TestAKillerOfLeasesAmongOthers(t *testing.T) { killsLeasesAmongOthers(t, doKill) }

func killsLeasesAmongOthers(t *testing.T, do string) {
	t.Helper()
	const neighbours = 9
	killer := do + "-1"
	longer := func(int) time.Duration { return 4 * time.Second } // than their lease
	b := setup(t).leased(errands{Lease: 3 * time.Second, Concurrency: neighbours + 1}, longer)
	var keys []string
	for i := range neighbours {
		keys = append(keys, neighbour(i+1))
	}
	b.publish(slices.Insert(keys, 4, killer)...)
	process.Supervise(t, b.command(b.worker, ""), restartPause)
	b.verify(ledger.Expect{Within: 6 * testTimeout, MaxAttempts: crashLimit + 1, Failed: map[string]ledger.Dead{killer: {Attempts: crashLimit}}})
	b.wantExecuted(killer, crashLimit)
	if most := one[int](b.bundle, "select max(crashes) from core.outbox where status = 'delivered'"); most > 1 {
		t.Errorf("a neighbour has %d crashes, want 1 at most", most)
	}
}

// A worker dies with two leases, one of which began a moment after the other: the death counts once for each, and is no
// failure of a handler.
func TestADeathCountsForEachOfTwoLeases(t *testing.T) {
	const first, second = doAwait + "-1", doAwait + "-2"
	b := setup(t).leased(errands{Lease: 2 * time.Second}, nil)
	worker := b.run()
	b.publish(first)
	b.awaitBegun(first, 1)
	b.publish(second)
	b.awaitBegun(second, 1)
	worker.Kill()
	worker.AwaitExit(t, grace)
	b.open(first, second) // they run one after the other now
	b.run()
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
	for _, key := range []string{first, second} {
		b.wantExecuted(key, 2)
		b.wantColumn(key, "crashes || ' ' || handler_failures", "1 {}")
	}
}
