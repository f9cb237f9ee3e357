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

// commits are the transactions of leased work whose COMMIT a test may lose.
var commits = map[string]struct {
	text  string // of a statement in the transaction
	key   string
	lease time.Duration
	runs  int // executions; all but the last fail
}{
	"claim":     {"outbox_lease", plainKey(1), time.Hour, 1},
	"settle":    {"outbox_deliver_leased", plainKey(1), time.Hour, 1},
	"retry":     {"outbox_retry_leased", doFailOnce + "-1", time.Hour, 2},
	"heartbeat": {"outbox_heartbeat", doAwait + "-1", lease, 1},
}

// loseLeaseCommit does action to a COMMIT of leased work. No job may run again, or wait for its lease to expire.
func loseLeaseCommit(t *testing.T, at string, action proxy.Action) {
	t.Helper()
	c := commits[at]
	b := setup(t).leased(jobConfig{Lease: c.lease}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, action, proxy.CommitOf(c.text))
	pool.Filter(filter)
	worker := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	worker.Await(t, listening, 1, testTimeout)
	b.publish(c.key, plainKey(2), plainKey(3))
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
	b.publish(plainKeys(101, 8)...) // the worker goes on
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: c.runs})
	worker.Signal(syscall.SIGTERM)
	if code := worker.AwaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestWorkerWritesNothingAfterItsLeaseExpiredHoweverItEnds(t *testing.T) {
	for name, tell := range map[string]string{
		"when it retries": gateError, "when it fails": gateTerminal, "when it renews": "nothing",
	} {
		t.Run(name, func(t *testing.T) {
			oldHolderWritesNothing(t, func(b *leased, oldHolder *process.Process) {
				if tell != "nothing" {
					b.tell(contestedKey, oldHolder.PID(), tell)
				}
				oldHolder.Thaw()
				oldHolder.Await(t, leaseLost, 1, testTimeout)
			})
		})
	}
	t.Run("when it releases", func(t *testing.T) {
		oldHolderWritesNothing(t, func(_ *leased, oldHolder *process.Process) {
			oldHolder.Signal(syscall.SIGTERM)
			oldHolder.Thaw()
			oldHolder.AwaitExit(t)
		})
	})
}

func TestLostLeaseCommitRepeatsNothing(t *testing.T) {
	for at, action := range map[string]proxy.Action{
		"claim": proxy.ForwardThenReset, "settle": proxy.ForwardThenReset, "retry": proxy.ForwardThenReset,
		"heartbeat": proxy.Reset,
	} {
		t.Run(at, func(t *testing.T) { loseLeaseCommit(t, at, action) })
	}
}

func TestWorkerWithLeasesStopsWithoutDatabase(t *testing.T) {
	const key = doAwait + "-1"
	for name, mode := range map[string]proxy.Mode{"refusing": proxy.Refuse, "silent": proxy.Stall} {
		t.Run(name, func(t *testing.T) {
			b := setup(t).leased(jobConfig{Lease: lease, Grace: time.Second}, nil)
			p := proxy.InFrontOf(t, b.worker)
			worker := process.Start(t, b.command(p.URL(t, b.worker), ""))
			worker.Await(t, listening, 1, testTimeout)
			b.publish(key)
			b.awaitExecution(key, 1)
			p.Set(mode)
			if mode == proxy.Refuse {
				p.ResetAll()
			}
			worker.Signal(syscall.SIGTERM)
			if code := worker.AwaitExit(t); code == -1 {
				t.Error("the worker was ended by a signal, not by itself")
			}
			p.Set(proxy.Pass)
			b.expire()
			b.run()
			b.awaitExecution(key, 2)
			b.open(key)
			totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
			if totals.Executions != 2 || totals.Leases["reaped"] != 1 {
				t.Error(totals)
			}
		})
	}
}

// A worker whose COMMIT never arrived retries it after its lease expired, and writes nothing.
func TestRetriedCompletionWritesNothingAfterTheLeaseExpired(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(jobConfig{Lease: lease, SecondExecutor: true}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	commit := proxy.CommitOf("faults.effects")
	filter, hit := proxy.Nth(1, proxy.Reset, func(m proxy.Message) bool {
		found := commit(m)
		if found {
			pool.Set(proxy.Refuse)
		}
		return found
	})
	pool.Filter(filter)
	oldHolder := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	oldHolder.Await(t, listening, 1, testTimeout)
	b.publish(key)
	b.awaitExecution(key, 1)
	b.tell(key, oldHolder.PID(), "")
	<-hit
	oldHolder.Freeze() // before it retries
	pool.Set(proxy.Pass)
	b.expire()
	other := b.run()
	b.awaitExecution(key, 2)
	oldHolder.Thaw()
	oldHolder.Await(t, leaseLost, 1, testTimeout)
	if n := one[int](b.bundle, "select count(*) from faults.effects"); n > 0 {
		t.Errorf("it wrote %d effects", n)
	}
	b.tell(key, other.PID(), "")
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
}

func gatedKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", doAwait, i)
	}
	return keys
}

// awaitAllExecutions waits for the n-th execution of every job.
func (b *leased) awaitAllExecutions(keys []string, n int) {
	b.Helper()
	b.eventually("execution of all jobs", testTimeout, func() bool {
		all, err := b.executionLog().Read()
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

// The server crashes while a hundred jobs run, half of which end before it is back. If their leases hold, no job runs
// again. If they expire, all unsettled jobs run again, and no failure or crash is counted.
func TestServerCrashChargesNoLeasedJob(t *testing.T) {
	keys := gatedKeys(100)
	for name, expire := range map[string]bool{"the leases hold": false, "the leases expire": true} {
		t.Run(name, func(t *testing.T) {
			outer, s := setupServer(t)
			b := outer.leased(jobConfig{Lease: time.Minute, Concurrency: len(keys)}, nil)
			worker := b.run()
			b.publish(keys...)
			b.awaitAllExecutions(keys, 1)
			s.Crash(t, syscall.SIGQUIT)
			executions, attempts := len(keys), 1
			if !expire {
				b.open(keys[:50]...)
			}
			s.Start(t)
			if expire {
				b.expire()
				b.awaitAllExecutions(keys, 2)
				executions, attempts = 2*len(keys), 2
			}
			b.open(keys...)
			totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: attempts})
			if totals.Executions != executions || totals.Leases["reaped"] != executions-len(keys) {
				t.Error(totals)
			}
			if n := one[int](b.bundle, "select count(*) from core.outbox where handler_failures <> '{}' or crashes > 0"); n > 0 {
				t.Errorf("%d events have a failure or a crash", n)
			}
			wantRunning(t, []*process.Process{worker})
		})
	}
}

const crashLimit = 5

// A job that ends its process while nine others run: those are delivered, with one crash at most.
func TestJobThatEndsItsProcessFailsAlone(t *testing.T) { killerAmongLeases(t, doKill) }

func killerAmongLeases(t *testing.T, do string) {
	t.Helper()
	const neighbours = 9
	killer := do + "-1"
	longerThanTheLease := func(int) time.Duration { return 4 * time.Second }
	b := setup(t).leased(jobConfig{Lease: 3 * time.Second, Concurrency: neighbours + 1}, longerThanTheLease)
	b.publish(slices.Insert(plainKeys(1, neighbours), 4, killer)...)
	process.Supervise(t, b.command(b.worker, ""), restartPause)
	b.verify(ledger.Expect{
		Within: 6 * testTimeout, MaxAttempts: crashLimit + 1,
		Failed: map[string]int{killer: crashLimit},
	})
	b.wantExecuted(killer, crashLimit)
	if most := one[int](b.bundle, "select max(crashes) from core.outbox where status = 'delivered'"); most > 1 {
		t.Errorf("a plainKey has %d crashes, want 1 at most", most)
	}
}
